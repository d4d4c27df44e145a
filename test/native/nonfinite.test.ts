/** Infinities in one sequence: it ends with a numerical failure, its batch mates and the next owners of its pages never notice. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { join } from 'node:path';
import {
  Driver,
  generate,
  openModel,
  type Generation,
  type OpenModel,
  type Prompt,
} from '../fixtures/engine-driver.ts';
import { hashTokens } from '../fixtures/hash-weights.ts';
import { temporaryDirectory, writeFamily } from '../fixtures/tiny-model.ts';

/** Its embedding is infinite; ids from it on are not samplable. The families are not tied: its row of the head stays finite. */
const POISON = 250;
const temporary = temporaryDirectory();
afterAll(() => temporary.remove());

function healthy(name: string, length: number): number[] {
  return [...hashTokens(name, length, POISON)];
}

function poisoned(length: number): number[] {
  return healthy('poisoned', length).map((id, index) => (index % 5 === 2 ? POISON : id));
}

const bits = ({ tokens, logprobs }: Generation) => [
  tokens,
  Buffer.from(Float32Array.from(logprobs).buffer).toString('hex'),
];
const sampling = { maxTokens: 30, logprobs: 0 };
const MATES: Prompt[] = [1, 14, 40, 70].map((length, index) => ({
  slot: index + 1,
  ids: healthy(`mate ${index}`, length),
  sampling,
}));
const HEIRS: Prompt[] = [3, 17, 33, 90].map((length, index) => ({
  slot: index + 1,
  ids: healthy(`heir ${index}`, length),
  sampling,
}));

describe.each([
  ['mistral', 'float32'],
  ['mistral', 'bfloat16'],
  ['qwen2-window', 'float32'],
  ['llama2', 'bfloat16'],
] as const)('%s, %s', (family, dtype) => {
  const directory = join(temporary.path, `${family}-${dtype}`);
  let opened: OpenModel;
  beforeAll(async () => {
    writeFamily(directory, family, {
      edit: (name, values, shape) => {
        if (name === 'model.embed_tokens.weight') values.fill(Infinity, POISON * shape[1]!, (POISON + 1) * shape[1]!);
      },
    });
    opened = await openModel(directory, dtype);
  });
  afterAll(() => opened.model.close());

  async function alone(prompt: Prompt): Promise<unknown> {
    const driver = new Driver(opened, { samplableVocab: POISON });
    const [result] = await generate(driver, [prompt]);
    driver.engine.close();
    expect(result!.finish).toBe(2);
    return bits(result!);
  }

  test.each([Infinity, 7])('a poisoned prompt among others, chunks of %d', async (chunk) => {
    // Few pages, so that the heirs must take those of the dead.
    const driver = new Driver(opened, { samplableVocab: POISON, pages: 48 });
    for (let round = 0; round < 3; round++) {
      const sick: Prompt[] = [20 + round, 100, 3].map((length, index) => ({
        slot: 10 + index,
        ids: poisoned(length),
        sampling,
      }));
      const results = await generate(driver, [...sick, ...MATES], chunk);
      for (const dead of results.slice(0, sick.length)) expect(dead).toMatchObject({ finish: 3, tokens: [] });
      for (const [index, mate] of MATES.entries())
        expect(bits(results[sick.length + index]!)).toEqual(await alone(mate));
      const heirs = await generate(driver, HEIRS, chunk);
      for (const [index, heir] of HEIRS.entries()) expect(bits(heirs[index]!)).toEqual(await alone(heir));
    }
    driver.engine.close();
  });

  test('a sequence that is poisoned while it decodes', async () => {
    const driver = new Driver(opened, { samplableVocab: POISON, pages: 8 });
    driver.open(0, 3, sampling);
    driver.open(1, 3, sampling);
    const ids = [5, 6, 9];
    const [first] = await driver.step([
      { slot: 0, tokens: ids },
      { slot: 1, tokens: ids },
    ]);
    expect(first!.finish).toBe(0);
    const [dead, alive] = await driver.step([
      { slot: 0, tokens: [POISON] },
      { slot: 1, tokens: [11] },
    ]);
    expect(dead).toMatchObject({ slot: 0, finish: 3 });
    expect(alive!.finish).toBe(0);
    driver.close(0);
    const [later] = await driver.step([{ slot: 1, tokens: [12] }]);
    const [expected] = await generate(new Driver(opened, { samplableVocab: POISON }), [
      { slot: 0, ids: [...ids, 11, 12], sampling },
    ]);
    expect([later!.token, later!.logprob]).toEqual([expected!.tokens[0], expected!.logprobs[0]]);
  });
});

test('pages of the dead are really taken over', async () => {
  const directory = join(temporary.path, 'takeover');
  writeFamily(directory, 'qwen3');
  const opened = await openModel(directory, 'float32');
  const driver = new Driver(opened, { pages: 4 });
  driver.open(0, 40);
  await driver.step([{ slot: 0, tokens: healthy('first', 40) }]);
  const pages = [...driver.pagesOf(0)].sort();
  driver.close(0);
  driver.open(1, 40);
  await driver.step([{ slot: 1, tokens: healthy('second', 40) }]);
  expect([...driver.pagesOf(1)].sort()).toEqual(pages);
  driver.engine.close();
  opened.model.close();
});
