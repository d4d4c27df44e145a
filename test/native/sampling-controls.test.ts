/**
 * Every control of sampling against its exact distribution: the processed log-probabilities of the whole vocabulary after a
 * given history, and draws that keep to it.
 */
import { afterAll, describe, expect, test } from 'vitest';
import { join } from 'node:path';
import { Driver, generate, type OpenModel, type Sample } from '../fixtures/engine-driver.ts';
import { temporaryDirectory } from '../fixtures/tiny-model.ts';
import {
  logitsOf,
  openTable,
  samplingGoldens,
  softmax,
  specOf,
  TABLE_VOCAB,
  type SamplingCase,
} from './sampling-cases.ts';

const temporary = temporaryDirectory();
afterAll(() => temporary.remove());

/** Below this a probability may be lost in float32. */
const SMALL = 1e-20;

function history(sampling: SamplingCase): { prompt: number[]; output: number[] } {
  return { prompt: sampling.prompt ?? [1], output: sampling.output ?? [] };
}

/** One sample after the case's history; outputs are fed as after a preemption. */
async function sampleAfter(
  opened: OpenModel,
  sampling: SamplingCase,
  mode: 'raw' | 'temperature' | 'processed',
): Promise<Sample> {
  const driver = new Driver(opened);
  const { prompt, output } = history(sampling);
  driver.open(0, prompt.length, { ...specOf(sampling), logprobs: TABLE_VOCAB, logprobsMode: mode });
  const [sample] = await driver.step([{ slot: 0, tokens: [...prompt, ...output] }]);
  driver.engine.close();
  return sample!;
}

function expectDistribution(sample: Sample, ids: number[], probabilities: number[]): void {
  const found = new Map(Array.from(sample.topIds, (id, index) => [id, sample.topLogprobs[index]!]));
  ids.forEach((id, index) => {
    const probability = probabilities[index]!;
    if (probability > SMALL) expect(found.get(id), `id ${id}`).toBeCloseTo(Math.log(probability), 3);
    else expect(found.get(id) ?? -Infinity, `id ${id}`).toBeLessThan(-40);
  });
  for (const [id, logprob] of found) {
    if (!ids.includes(id)) expect(logprob, `id ${id}`).toBeLessThan(-100);
  }
  const sorted = [...sample.topLogprobs].sort((a, b) => b - a);
  expect([...sample.topLogprobs]).toEqual(sorted);
}

describe.each([...samplingGoldens.filters, ...samplingGoldens.controls])('$name', (sampling) => {
  test('processed log-probabilities are the exact distribution, raw ones ignore it', async () => {
    const opened = await openTable(join(temporary.path, sampling.name), logitsOf(sampling));
    const { ids, probabilities } = sampling;
    const processed = await sampleAfter(opened, sampling, 'processed');
    expectDistribution(processed, ids, probabilities);
    expect(ids).toContain(processed.token);
    expect(processed.logprob).toBe(processed.topLogprobs[processed.topIds.indexOf(processed.token)]);

    const logits = logitsOf(sampling);
    const all = Array.from(logits, (_, id) => id);
    const raw = await sampleAfter(opened, sampling, 'raw');
    expectDistribution(raw, all, softmax(logits));
    const warm = await sampleAfter(opened, sampling, 'temperature');
    expectDistribution(warm, all, softmax(logits.map((value) => value / (sampling.temperature ?? 1))));
    expect([raw.token, warm.token]).toEqual([processed.token, processed.token]);
    opened.model.close();
  });
});

describe('controls follow the sequence as it grows', () => {
  test.each(samplingGoldens.controls)('$name: a preemption changes nothing', async (sampling) => {
    const opened = await openTable(join(temporary.path, `${sampling.name}-grows`), logitsOf(sampling));
    const spec = { ...specOf(sampling), seed: 5n, maxTokens: 24, logprobs: 3, logprobsMode: 'processed' as const };
    const { prompt } = history(sampling);
    const run = async (resume: number[], chunk: number) => {
      const driver = new Driver(opened);
      const [result] = await generate(driver, [{ slot: 0, ids: prompt, sampling: spec, resume }], chunk);
      driver.engine.close();
      return result!;
    };
    const whole = await run([], Infinity);
    expect(whole.tokens.length).toBeGreaterThan(0);
    for (const known of [1, 2, whole.tokens.length - 1]) {
      const rest = await run(whole.tokens.slice(0, known), 3);
      expect([...whole.tokens.slice(0, known), ...rest.tokens]).toEqual(whole.tokens);
      expect(rest.logprobs).toEqual(whole.logprobs.slice(known));
    }
    opened.model.close();
  });
});

test('processed log-probabilities keep their digits far below the best token', async () => {
  const opened = await openTable(join(temporary.path, 'far'), Float32Array.of(10, 9, -85, -290));
  const sampling = { name: 'far', temperature: 0.5, ids: [], probabilities: [] };
  const { topIds, topLogprobs } = await sampleAfter(opened, sampling, 'processed');
  opened.model.close();
  const normaliser = Math.log1p(Math.exp(-2));
  expect([...topIds.slice(0, 4)]).toEqual([0, 1, 2, 3]);
  [0, -2, -190, -600].forEach((gap, at) => expect(topLogprobs[at]).toBeCloseTo(gap - normaliser, 3));
});
