/** What is drawn through llama.cpp's samplers (here a naive copy of them), beside the distribution that the native engine draws from. */
import { describe, expect, it } from 'vitest';
import type { SamplingSpec } from '../../../src/control/engine/native.ts';
import { seedOf, uniform } from '../../../src/control/llama/noise.ts';
import { drawNucleus, SequenceSampler } from '../../../src/control/llama/sampler.ts';
import { sampling } from '../scheduler/drive.ts';
import { CASES, distribution, implausible } from './distribution.ts';
import { FAKE_LLAMA, FakeContext, FakeSampler, logitsAfter, VOCABULARY } from './fake-llama.ts';

const MODEL = { init: () => Promise.resolve(true), getTotalSize: () => 0 };
const PROMPT = [3, 1, 4, 1, 5];
const OUTPUT = [9, 2, 6, 9, 9];
const HISTORY = [...PROMPT, ...OUTPUT];
const SAMPLABLE = VOCABULARY - 4;
const DRAWS = 6000;

/** How often each id is drawn, over as many choices. */
async function drawn(changes: Partial<SamplingSpec>, draws = DRAWS): Promise<number[]> {
  const context = new FakeContext(MODEL, { contextSize: 64, batchSize: 64, sequences: 1 });
  context.initBatch(HISTORY.length);
  const [place = 0] = context.addToBatch(0, 0, Uint32Array.from(HISTORY), Uint32Array.of(HISTORY.length - 1));
  const counts = new Array<number>(VOCABULARY).fill(0);
  for (let choice = 0; choice < draws; choice++) {
    const spec = sampling({ ...changes, choice, maxTokens: 50 });
    const vocabulary = { size: VOCABULARY, samplable: SAMPLABLE };
    const sampler = new SequenceSampler(FAKE_LLAMA, MODEL, spec, vocabulary);
    const token = await sampler.next(context, place, HISTORY, PROMPT.length);
    counts[token] = (counts[token] ?? 0) + 1;
    sampler.dispose();
  }
  return counts;
}

const situation = () => ({ logits: logitsAfter(HISTORY), prompt: PROMPT, output: OUTPUT, samplable: SAMPLABLE });

describe('the distribution', () => {
  const repetition: Partial<SamplingSpec> = { repetitionPenalty: 1.8 };
  it.each([...CASES, ['a repetition penalty', repetition] as const])('is the native one: %s', async (_, changes) => {
    const expected = distribution(sampling(changes), situation());
    expect(expected.filter((p) => p > 0).length).toBeGreaterThan(1);
    expect(implausible(await drawn(changes), expected)).toEqual([]);
  });

  it('the likeliest at temperature 0, with bias and penalties', async () => {
    const bias = { biasIds: Int32Array.of(9, 30), biasValues: Float32Array.of(4, -3) };
    for (const changes of [{}, bias, { repetitionPenalty: 3 }, { presencePenalty: 2, frequencyPenalty: 2 }]) {
      const spec = { ...changes, temperature: 1e-4 };
      const best = distribution(sampling(spec), situation()).findIndex((p) => p > 0.99);
      const counts = await drawn({ ...changes, temperature: 0 }, 3);
      expect(counts[best]).toBe(3);
    }
  });
});

describe('the nucleus', () => {
  it('is searched further where the first candidates do not reach it', async () => {
    // A flat row: 128 of 4096 candidates have a thirty-second of the probability.
    const size = 4096;
    const asked: (number | undefined)[] = [];
    const flat: FakeSampler[] = [];
    const binding = {
      ...FAKE_LLAMA,
      AddonSampler: class extends FakeSampler {
        constructor() {
          super();
          flat.push(this);
        }
      },
    };
    const context = {
      sampleToken: (_place: number, sampler: FakeSampler, list: boolean) => {
        const most = sampler.config?.topK ?? size;
        if (list) asked.push(sampler.config?.topK);
        const pairs = Array.from({ length: most }, (_, id) => [id, 1 / most]).flat();
        return Promise.resolve([7, list ? pairs : undefined, 1 / size]);
      },
    };
    const spec = sampling({ topP: 0.4 });
    const sampler = new SequenceSampler(binding, MODEL, spec, { size, samplable: size });
    const token = await sampler.next(context as unknown as FakeContext, 0, HISTORY, PROMPT.length);
    expect(asked).toEqual([128, 2048]);
    expect(flat).toHaveLength(1);
    expect(token).toBe(Math.floor(uniform(7n, 0, OUTPUT.length) * Math.ceil(0.4 * size)));
  });

  it('has one token at least, and none where there is none', () => {
    expect(drawNucleus([5, 0.9, 6, 0.1], 1, 1e-9, 0.999)).toBe(5);
    expect(drawNucleus([5, 0.5, 6, 0.5], 1, 1, 0.75)).toBe(6);
    expect(drawNucleus([5, 0.5, 6, 0.5], 1, 1, 1 - 2 ** -53)).toBe(6);
    expect(drawNucleus([], 1, 0.5, 0.5)).toBe(-1);
  });
});

describe('the noise', () => {
  it('is that of the native engine', () => {
    // What uniform() of native/src/ops/sampling.cc gives.
    expect(uniform(0n, 0, 0)).toBe(0.13870941014555427);
    expect(uniform(7n, 2, 5)).toBe(0.47389687214719556);
    expect(uniform(-1n, 1, 4000)).toBe(0.947159924995806);
  });

  it('differs by seed, choice and index, and is never the seed that means any', () => {
    const seeds = new Set<number>();
    for (let i = 0; i < 1000; i++)
      seeds
        .add(seedOf(BigInt(i), 0, 0))
        .add(seedOf(1n << 40n, i + 1, 0))
        .add(seedOf(3n << 40n, 0, i + 1));
    expect(seeds.size).toBeGreaterThan(2990);
    expect(seeds.has(2 ** 32 - 1)).toBe(false);
  });
});
