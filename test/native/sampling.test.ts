/**
 * Sampling against exact distributions. A table model gives known logits (fixtures/table-model.ts), so a long generation is a
 * run of independent draws from one known distribution. Seeds are fixed: nothing here is a matter of luck.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { join } from 'node:path';
import type { SamplingSpec } from '../../src/control/engine/native.ts';
import { Driver, fullLogprobs, generate, type OpenModel, type Prompt } from '../fixtures/engine-driver.ts';
import { hashUniform } from '../fixtures/hash-weights.ts';
import { temporaryDirectory } from '../fixtures/tiny-model.ts';
import { chiSquare, criticalValue } from './chi-square.ts';
import {
  IMPOSSIBLE,
  logitsOf,
  openTable,
  samplingGoldens,
  softmax,
  specOf,
  TABLE_VOCAB,
  type SamplingCase,
} from './sampling-cases.ts';

const SLOTS = 64;
const DRAWS = 160;
const temporary = temporaryDirectory();
afterAll(() => temporary.remove());

/** SLOTS x DRAWS independent draws. */
async function draws(opened: OpenModel, sampling: Partial<SamplingSpec>): Promise<number[]> {
  const driver = new Driver(opened, { pages: 2048 });
  const prompts = Array.from({ length: SLOTS }, (_, slot): Prompt => {
    return { slot, ids: [slot], sampling: { temperature: 1, maxTokens: DRAWS, seed: BigInt(slot) + 1n, ...sampling } };
  });
  const results = await generate(driver, prompts);
  driver.engine.close();
  return results.flatMap(({ tokens }) => tokens);
}

/** Controls that do not depend on the tokens so far: their draws stay independent. */
function isStatic({ name }: SamplingCase): boolean {
  return ['bias', 'allowed', 'allowed-one'].includes(name);
}

describe('draws follow the filtered distribution', () => {
  test.each([...samplingGoldens.filters, ...samplingGoldens.controls.filter(isStatic)])('$name', async (filter) => {
    const { name, ids, probabilities } = filter;
    const opened = await openTable(join(temporary.path, name), logitsOf(filter));
    const tokens = await draws(opened, specOf(filter));
    opened.model.close();
    const counts = ids.map((id) => tokens.filter((token) => token === id).length);
    expect(tokens.filter((token) => !ids.includes(token))).toEqual([]);
    const { statistic, freedom } = chiSquare(counts, probabilities);
    expect(statistic).toBeLessThanOrEqual(criticalValue(freedom));
    // What is kept with a fair chance does come.
    ids.forEach((id, index) => {
      if (probabilities[index]! * tokens.length > 25) expect(counts[index], `id ${id}`).toBeGreaterThan(0);
    });
  });

  test('the statistic sees a temperature that is 15 % off', async () => {
    const plain = samplingGoldens.filters.find(({ name }) => name === 'plain')!;
    const opened = await openTable(join(temporary.path, 'off'), logitsOf(plain));
    const tokens = await draws(opened, { temperature: 1.15 });
    opened.model.close();
    const counts = plain.ids.map((id) => tokens.filter((token) => token === id).length);
    const { statistic, freedom } = chiSquare(counts, plain.probabilities);
    expect(statistic).toBeGreaterThan(criticalValue(freedom));
  });
});

describe('one table', () => {
  const logits = new Float32Array(samplingGoldens.vocab);
  let opened: OpenModel;
  let driver: Driver;

  beforeAll(async () => {
    logits.set(hashUniform('sampling/one', samplingGoldens.vocab, 0, 3));
    // Equal best values at 50 and 60, a third at 90.
    logits.set([4, 4, 4].map(Math.fround), 0);
    logits[50] = logits[60] = logits[90] = 5;
    opened = await openTable(join(temporary.path, 'one'), logits);
    driver = new Driver(opened);
  });
  afterAll(() => {
    driver.engine.close();
    opened.model.close();
  });

  const run = async (...prompts: Partial<SamplingSpec>[]) =>
    generate(
      driver,
      prompts.map((sampling, slot) => ({ slot, ids: [1], sampling: { maxTokens: 40, ...sampling } })),
    );

  test('greedy takes the best, of equals the smallest id, whatever the filters', async () => {
    const [plain, filtered] = await run(
      { temperature: 0 },
      { temperature: 0, topK: 3, topP: 0.1, minP: 0.5, seed: 9n },
    );
    expect(new Set(plain!.tokens)).toEqual(new Set([50]));
    expect(filtered!.tokens).toEqual(plain!.tokens);
  });

  test('a seed gives the same tokens alone and among 31 others', async () => {
    const specs = Array.from({ length: 32 }, (_, index) => ({
      temperature: 1,
      topP: 0.95,
      seed: BigInt(index % 16),
      choice: index >> 4,
    }));
    const together = await run(...specs);
    for (const index of [0, 7, 31]) {
      const [alone] = await run(specs[index]!);
      expect(alone!.tokens).toEqual(together[index]!.tokens);
    }
    expect(new Set(together.map(({ tokens }) => String(tokens))).size).toBe(32);
  });

  test('seeds take 64 bits', async () => {
    const seeds = [0n, -1n, 1n << 32n, 1n << 53n, (1n << 53n) + 1n, (1n << 63n) - 1n, -(1n << 63n)];
    const results = await run(...seeds.map((seed) => ({ temperature: 1, seed })));
    expect(new Set(results.map(({ tokens }) => String(tokens))).size).toBe(seeds.length);
  });

  test('ids from samplableVocab on are never sampled, though they count in raw logprobs and ranks', async () => {
    const narrow = new Driver(opened, { samplableVocab: 50 });
    const specs = Array.from({ length: 32 }, (_, index) => ({ temperature: index % 2 ? 3 : 0, seed: BigInt(index) }));
    const prompts = specs.map((sampling, slot) => ({
      slot,
      ids: [1],
      sampling: { maxTokens: 100, logprobs: 2, ...sampling },
    }));
    const results = await generate(narrow, prompts);
    narrow.engine.close();
    expect(Math.max(...results.flatMap(({ tokens }) => tokens))).toBeLessThan(50);
    const [first] = results[0]!.tops;
    expect(first).toMatchObject({ token: 0, rank: 4 });
    expect([...first!.topIds]).toEqual([50, 60]);
    expect(first!.logprob).toBeCloseTo(first!.topLogprobs[0]! - 1, 5);
  });

  test('raw logprobs are the log-softmax of the untouched logits, best first, equals by smaller id', async () => {
    const [result] = await run({ temperature: 2.5, topK: 5, seed: 3n, logprobs: TABLE_VOCAB, maxTokens: 5 });
    const exact = softmax([...logits, ...new Array<number>(TABLE_VOCAB - logits.length).fill(IMPOSSIBLE)]).map(
      Math.log,
    );
    const order = exact
      .map((_, id) => id)
      .sort((a, b) => (logits[b] ?? IMPOSSIBLE) - (logits[a] ?? IMPOSSIBLE) || a - b);
    for (const sample of result!.tops) {
      expect([...sample.topIds]).toEqual(order);
      const row = fullLogprobs(sample, TABLE_VOCAB);
      for (let id = 0; id < logits.length; id++) expect(row[id]).toBeCloseTo(exact[id]!, 5);
      expect(sample.logprob).toBe(row[sample.token]);
      expect(sample.rank).toBe(1 + row.filter((value) => value > sample.logprob).length);
    }
  });

  test('logprobs -1, 0 and k', async () => {
    const [none, own, two] = await run({ logprobs: -1 }, { logprobs: 0 }, { logprobs: 2 });
    expect(none!.tops[0]).toMatchObject({ logprob: NaN, rank: 0 });
    expect(none!.tops[0]!.topIds).toHaveLength(0);
    expect(own!.tops[0]!.rank).toBe(1);
    expect(own!.tops[0]!.topIds).toHaveLength(0);
    expect([...two!.tops[0]!.topIds]).toEqual([50, 60]);
    expect(own!.tops[0]!.logprob).toBe(two!.tops[0]!.topLogprobs[0]);
  });

  test.each([0, 1])('stop ids wait for min_tokens and then end the sequence, temperature %d', async (temperature) => {
    const stopIds = Int32Array.of(50, 60, 90);
    const [never, late] = await run({ temperature, stopIds }, { temperature, stopIds, minTokens: 7 });
    if (temperature === 0) expect(never).toMatchObject({ finish: 1, tokens: [50] });
    expect(late!.tokens.slice(0, 7).some((id) => stopIds.includes(id))).toBe(false);
    expect(late!.tokens.length).toBeGreaterThan(7);
    if (late!.finish === 1) expect(stopIds).toContain(late!.tokens.at(-1));
    if (temperature === 0) expect(late).toMatchObject({ finish: 1, tokens: [0, 0, 0, 0, 0, 0, 0, 50] });
  });

  test.each([0, 1])('barred ids wait for min_tokens too, and end nothing, temperature %d', async (temperature) => {
    const barredIds = Int32Array.of(50, 60);
    const stopIds = Int32Array.of(90);
    const [free, late] = await run(
      { temperature, barredIds, maxTokens: 30 },
      { temperature, barredIds, stopIds, minTokens: 20, maxTokens: 30 },
    );
    expect(free!.tokens.some((id) => barredIds.includes(id))).toBe(true);
    expect(free).toMatchObject({ finish: 2 });
    expect(late!.tokens.slice(0, 20).some((id) => barredIds.includes(id) || stopIds.includes(id))).toBe(false);
    if (temperature === 0) expect(late!.tokens.slice(20)).toEqual(new Array<number>(10).fill(50));
  });

  test('maxTokens and maxModelLen end with length; a stop token in the last place is a stop', async () => {
    const [cut, stopped] = await run({ maxTokens: 3 }, { maxTokens: 1, stopIds: Int32Array.of(50) });
    expect(cut).toMatchObject({ finish: 2, tokens: [50, 50, 50] });
    expect(stopped).toMatchObject({ finish: 1, tokens: [50] });
    const short = new Driver(opened, { maxModelLen: 20 });
    const [full] = await generate(short, [
      { slot: 0, ids: new Array<number>(15).fill(2), sampling: { maxTokens: 20 } },
    ]);
    short.engine.close();
    expect(full).toMatchObject({ finish: 2, tokens: [50, 50, 50, 50, 50] });
  });

  test('where no id may be sampled the sequence ends without a token', async () => {
    const narrow = new Driver(opened, { samplableVocab: 2 });
    const stopIds = Int32Array.of(0, 1);
    for (const temperature of [0, 1]) {
      const [result] = await generate(narrow, [
        { slot: 0, ids: [1], sampling: { temperature, stopIds, minTokens: 5 } },
      ]);
      expect(result).toMatchObject({ finish: 5, tokens: [] });
    }
    narrow.engine.close();
  });
});
