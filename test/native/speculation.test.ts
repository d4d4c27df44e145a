/**
 * Speculation through scheduler and engine: every output, log-probability and end is the same with it and without, for every seed and
 * control, in batches, over preemptions and with adapters.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { join } from 'node:path';
import { createLocalEngine } from '../../src/control/engine/local.ts';
import type { SamplingSpec } from '../../src/control/engine/native.ts';
import type { EngineConfig, EngineStats, SequenceOutput } from '../../src/control/engine/protocol.ts';
import type { AdapterRef } from '../../src/control/engine/training.ts';
import { adapterVersion } from '../../src/control/models/adapter-version.ts';
import { writeAdapter } from '../fixtures/adapters.ts';
import { hashTokens } from '../fixtures/hash-weights.ts';
import { tinyEngine } from '../fixtures/tiny-engine.ts';
import { temporaryDirectory } from '../fixtures/tiny-model.ts';
import { sampling } from '../unit/scheduler/drive.ts';

const temporary = temporaryDirectory();
let config: EngineConfig;
let adapter: AdapterRef;

beforeAll(async () => {
  config = await tinyEngine(join(temporary.path, 'model'));
  const { spec } = config;
  const folder = join(temporary.path, 'adapter');
  writeAdapter(folder, spec, { seed: 'adapter', rank: 8, alpha: 16 });
  adapter = { version: await adapterVersion(folder), directory: folder };
});
afterAll(() => temporary.remove());

/** Few allowed ids and greedy loops make text that repeats itself; the other controls look at what came before. */
function controls(index: number, vocab: number): Partial<SamplingSpec> {
  const few = Int32Array.from([...new Set(hashTokens(`few ${index}`, 4, vocab))].sort((a, b) => a - b));
  const kinds: Partial<SamplingSpec>[] = [
    { temperature: 0 },
    { allowedIds: few },
    { allowedIds: few, frequencyPenalty: 0.3, presencePenalty: 0.2 },
    { allowedIds: few, repetitionPenalty: 1.3, topP: 0.9 },
    { allowedIds: few, badWords: [few.slice(0, 2), few.slice(1, 3)] },
    { allowedIds: few, stopIds: few.slice(0, 1), minTokens: 9 },
    { allowedIds: few, logprobsMode: 'processed', minP: 0.05 },
    { temperature: 0.2, biasIds: few, biasValues: new Float32Array(few.length).fill(30), topK: 5 },
  ];
  return { logprobs: 2, maxTokens: 20 + (index % 5) * 12, seed: BigInt(index) * 31n, ...kinds[index % kinds.length] };
}

interface Run {
  texts: string[];
  stats: EngineStats;
}

async function run(changes: Partial<EngineConfig>, count: number): Promise<Run> {
  const engine = await createLocalEngine({ ...config, ...changes });
  await engine.loadAdapter(adapter);
  const outputs: SequenceOutput[][] = Array.from({ length: count }, () => []);
  const requests = outputs.map((_, index) => ({
    promptIds: hashTokens(`prompt ${index % 6}`, 5 + ((index * 13) % 60), config.spec.vocabSize),
    sampling: sampling(controls(index, config.spec.vocabSize)),
    priority: 0,
    tenant: 'a',
    adapter: index % 3 === 2 ? adapter : null,
  }));
  let open = count;
  await new Promise<void>((resolve) =>
    engine.submit(requests, (index, output) => {
      outputs[index]?.push(output);
      if (output.finish !== null && --open === 0) resolve();
    }),
  );
  const stats = engine.stats();
  await engine.close();
  const bits = (values: Iterable<number>[]) =>
    values.map((each) => [...new Uint32Array(Float32Array.from(each).buffer)]);
  const texts = outputs.map((pieces) =>
    JSON.stringify([
      pieces.flatMap(({ tokens }) => [...tokens]),
      bits(pieces.map(({ logprobs }) => logprobs)),
      pieces.flatMap(({ top }) => top.map(({ ids, logprobs }) => [[...ids], bits([logprobs])])),
      pieces.at(-1)?.finish,
    ]),
  );
  return { texts, stats };
}

const speculation = (numSpeculativeTokens: number) => ({
  speculation: {
    numSpeculativeTokens,
    promptLookupMax: 3,
    promptLookupMin: 1,
    disableByBatchSize: 4097,
    measured: false,
  },
});

test('outputs, log-probabilities and ends are the same with it and without', async () => {
  const without = await run({}, 48);
  expect(without.stats.speculation).toBeUndefined();
  for (const most of [1, 5, 15]) {
    const { texts, stats } = await run(speculation(most), 48);
    expect(texts).toEqual(without.texts);
    expect(stats.speculation?.acceptedTokens).toBeGreaterThan(50);
    expect(stats.steps).toBeLessThan(without.stats.steps);
  }
});

test('also over preemptions', async () => {
  // Pages for one full sequence.
  const tight = { kvCacheBytes: 13 * pageBytes() };
  const without = await run({}, 24);
  const { texts, stats } = await run({ ...tight, ...speculation(5) }, 24);
  expect(stats.preemptions).toBeGreaterThan(0);
  expect(stats.speculation?.acceptedTokens).toBeGreaterThan(0);
  expect(texts).toEqual(without.texts);
});

function pageBytes(): number {
  const { layers, kvHeads, headDim } = config.spec;
  return layers * kvHeads * 2 * 16 * headDim * 2;
}

test('switched by what it gains, the outputs are the same too', async () => {
  const without = await run({}, 8);
  const measured = { speculation: { ...speculation(5).speculation, measured: true } };
  expect((await run(measured, 8)).texts).toEqual(without.texts);
});
