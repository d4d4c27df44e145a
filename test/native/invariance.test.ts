/**
 * The reduction contract: a token's logits and draws depend on its own sequence alone. The same 64 prompts run alone, together,
 * in chunks, on 1 and 2 threads, in other slots and pages, and over a preemption; ids and raw logprobs must agree bit by bit.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { PAGE_SIZE, type SamplingSpec } from '../../src/control/engine/native.ts';
import {
  Driver,
  generate,
  openModel,
  type Generation,
  type OpenModel,
  type Prompt,
} from '../fixtures/engine-driver.ts';
import { hashTokens, hashUint32 } from '../fixtures/hash-weights.ts';
import { temporaryDirectory, writeFamily } from '../fixtures/tiny-model.ts';
import { STARTER, starterGoldens } from '../fixtures/starter.ts';

const COUNT = 64;
const OUTPUTS = 8;

/** Hashed prompts, of lengths around pages (16) and key tiles (64) first, then real ones. */
function prompts(vocab: number): Prompt[] {
  const lengths = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200];
  return Array.from({ length: COUNT }, (_, slot) => {
    const length = lengths[slot] ?? 1 + (hashUint32(`length ${slot}`, 1)[0]! % 60);
    const real = slot >= COUNT - 20 ? starterGoldens[COUNT - 1 - slot]!.prompt_ids.map((id) => id % vocab) : undefined;
    const ids = real ?? hashTokens(`prompt ${slot}`, length, vocab);
    return { slot, ids, sampling: samplingOf(slot) };
  });
}

/** Lengths at edges and some real ones: all that differs with another format of pages. */
const ofPages = ({ slot }: Prompt) => slot < 15 || slot >= COUNT - 8;

function samplingOf(slot: number): Partial<SamplingSpec> {
  const common = { maxTokens: OUTPUTS, logprobs: 3, seed: BigInt(slot) * 7_919n - 1_000n, choice: slot % 3 };
  const kinds: Partial<SamplingSpec>[] = [
    { temperature: 0 },
    { temperature: 1 },
    { temperature: 0.8, topP: 0.9 },
    { temperature: 1.3, topK: 40, minP: 0.02 },
  ];
  return { ...common, ...kinds[slot % kinds.length] };
}

/** Everything that must agree, floats as bits. */
function bits(results: Generation[]): string[] {
  const hex = (values: ArrayLike<number>) => Buffer.from(Float32Array.from(values).buffer).toString('hex');
  return results.map(({ tokens, logprobs, tops, finish }) => {
    const top = tops.map((sample) => `${sample.rank}:${sample.topIds.join(',')}:${hex(sample.topLogprobs)}`);
    return JSON.stringify({ tokens, logprobs: hex(logprobs), top, finish });
  });
}

async function withDriver<T>(opened: OpenModel, use: (driver: Driver) => Promise<T>): Promise<T> {
  const driver = new Driver(opened, { maxBatchTokens: 16384, pages: 1024, maxModelLen: 512, maxLogprobs: 3 });
  try {
    return await use(driver);
  } finally {
    driver.engine.close();
  }
}

/** Stops after `outputs` tokens, gives up slots and pages, and goes on from the known tokens in other slots and pages. */
async function preempted(driver: Driver, all: Prompt[], outputs: number): Promise<Generation[]> {
  const cut = all.map((prompt) => ({ ...prompt, sampling: { ...prompt.sampling, maxTokens: outputs } }));
  const first = await generate(driver, cut);
  driver.free.reverse();
  const rest = all.map((prompt, index) => ({ ...prompt, slot: COUNT - 1 - prompt.slot, resume: first[index]!.tokens }));
  const second = await generate(driver, rest, 13);
  return second.map((result, index) => ({
    tokens: [...first[index]!.tokens, ...result.tokens],
    logprobs: [...first[index]!.logprobs, ...result.logprobs],
    tops: [...first[index]!.tops, ...result.tops],
    finish: result.finish,
  }));
}

const temporary = temporaryDirectory();
afterAll(() => temporary.remove());

function tiny(family: string): string {
  const directory = `${temporary.path}/${family}`;
  writeFamily(directory, family);
  return directory;
}

/** Each prompt's full pages (but for its last token) are computed by another sequence, then shared. */
async function prefixed(driver: Driver, all: Prompt[], chunk: number): Promise<Generation[]> {
  const results: Generation[] = [];
  for (const prompt of all) {
    const length = Math.floor((prompt.ids.length - 1) / PAGE_SIZE) * PAGE_SIZE;
    const tokens = Array.from(prompt.ids).slice(0, length);
    if (length > 0) {
      driver.open(60, length);
      await driver.step([{ slot: 60, tokens, sample: false }]);
    }
    const prefix = { tokens, pages: length > 0 ? driver.pagesOf(60) : [] };
    results.push(...(await generate(driver, [{ ...prompt, slot: 61, prefix }], chunk)));
    if (length > 0) driver.close(60);
  }
  return results;
}

describe.each([
  ['the starter model', 'float32', {}, () => STARTER],
  ['the starter model', 'bfloat16', {}, () => STARTER],
  ['the starter model', 'bfloat16', { kvCacheDtype: 'int8' }, () => STARTER],
  ['a sliding window, odd sizes', 'float32', {}, () => tiny('mistral')],
  ['a sliding window, odd sizes', 'bfloat16', {}, () => tiny('mistral')],
  ['a sliding window, odd sizes', 'float32', { kvCacheDtype: 'int8' }, () => tiny('mistral')],
] as const)('%s, %s %j', (_, dtype, formats, directory) => {
  let one: OpenModel;
  let two: OpenModel;
  let all: Prompt[];
  let expected: string[];

  beforeAll(async () => {
    one = await openModel(directory(), dtype, { ...formats, threads: 1, changes: { maxPosition: 512 } });
    two = await openModel(one.files.path, dtype, { ...formats, threads: 2, changes: { maxPosition: 512 } });
    all = prompts(one.files.tokenizerSize).filter((prompt) => !('kvCacheDtype' in formats) || ofPages(prompt));
    expected = bits(await withDriver(two, (driver) => generate(driver, all)));
  }, 120_000);
  afterAll(() => {
    one.model.close();
    two.model.close();
  });

  test('the expected run says something', () => {
    const tokens = expected.map((text) => (JSON.parse(text) as Generation).tokens);
    expect(tokens.every((ids) => ids.length === OUTPUTS)).toBe(true);
    expect(new Set(tokens.map(String)).size).toBeGreaterThan(all.length / 2);
  });

  test('1 thread', async () => {
    expect(bits(await withDriver(one, (driver) => generate(driver, all)))).toEqual(expected);
  }, 120_000);

  test.each([1, 2])(
    'alone, one after another in a reused slot, %i threads',
    async (threads) => {
      const found = await withDriver(threads === 1 ? one : two, async (driver) => {
        const results: Generation[] = [];
        for (const prompt of all) results.push(...(await generate(driver, [{ ...prompt, slot: 5 }])));
        return results;
      });
      expect(bits(found)).toEqual(expected);
    },
    240_000,
  );

  test.each([1, 2])(
    'together, prompts in chunks of different sizes, %i threads',
    async (threads) => {
      const sizes = [1, 3, 7, 16, 17, 31, 64];
      const chunk = (slot: number) => sizes[slot % sizes.length]!;
      expect(bits(await withDriver(threads === 1 ? one : two, (driver) => generate(driver, all, chunk)))).toEqual(
        expected,
      );
    },
    120_000,
  );

  test('other slots and permuted pages', async () => {
    const found = await withDriver(two, (driver) => {
      const order = hashUint32('pages', driver.pages);
      driver.free.sort((a, b) => order[a]! - order[b]!);
      return generate(
        driver,
        all.map((prompt) => ({ ...prompt, slot: (prompt.slot * 29 + 11) % COUNT })),
        50,
      );
    });
    expect(bits(found)).toEqual(expected);
  }, 120_000);

  test.each([Infinity, 5])(
    'prefixes from the cache, the rest in chunks of %d',
    async (chunk) => {
      expect(bits(await withDriver(two, (driver) => prefixed(driver, all, chunk)))).toEqual(expected);
    },
    120_000,
  );

  test('after a preemption', async () => {
    expect(bits(await withDriver(two, (driver) => preempted(driver, all, 3)))).toEqual(expected);
  }, 120_000);
});
