/** Scores of prompt tokens: the goldens' log-probabilities, the bits that decoding gives, whatever the chunks. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { join } from 'node:path';
import type { StepResult } from '../../src/control/engine/native.ts';
import { Driver, fullLogprobs, openModel, type OpenModel } from '../fixtures/engine-driver.ts';
import { familyPlan, temporaryDirectory, writeFamily } from '../fixtures/tiny-model.ts';
import { familyGoldens, goldenRows } from './logit-error.ts';

const FAMILY = 'mistral';
const TOP = 4;
const temporary = temporaryDirectory();
afterAll(() => temporary.remove());
const { tokens } = familyGoldens[FAMILY]!;

interface Score {
  slot: number;
  logprob: number;
  rank: number;
  top: [number, number][];
}

/** By position, which must come in order. */
function collect(scores: Map<string, Score>, result: StepResult): void {
  result.promptSlots.forEach((slot, index) => {
    const key = `${slot}/${result.promptPositions[index]}`;
    expect(scores.has(key)).toBe(false);
    const offset = result.promptTopRanges[2 * index]!;
    const count = result.promptTopRanges[2 * index + 1]!;
    scores.set(key, {
      slot,
      logprob: result.promptLogprobs[index]!,
      rank: result.promptRanks[index]!,
      top: Array.from({ length: count }, (_, k) => [result.topIds[offset + k]!, result.topLogprobs[offset + k]!]),
    });
  });
}

/** Slots 0 and 1 read the same prompt in different chunks; slot 2 does not ask. */
async function scorePrompt(opened: OpenModel, chunks: [number, number]): Promise<Map<string, Score>> {
  const driver = new Driver(opened, { pages: 64 });
  const scores = new Map<string, Score>();
  for (const slot of [0, 1]) driver.open(slot, tokens.length, { logprobs: 0 }, undefined, TOP);
  driver.open(2, tokens.length, { logprobs: 2 });
  const fed = [0, 0, 0];
  while (fed.some((count) => count < tokens.length)) {
    const rows = [...chunks, 33].map((chunk, slot) => ({ slot, tokens: tokens.slice(fed[slot]!, fed[slot]! + chunk) }));
    const open = rows.filter((row) => row.tokens.length > 0);
    for (const row of open) fed[row.slot]! += row.tokens.length;
    await driver.step(open.map((row) => ({ ...row, sample: fed[row.slot] === tokens.length })));
    collect(scores, driver.last!);
  }
  driver.engine.close();
  return scores;
}

describe.each(['float32', 'bfloat16'] as const)('%s', (dtype) => {
  let opened: OpenModel;
  beforeAll(async () => {
    writeFamily(join(temporary.path, dtype), FAMILY);
    opened = await openModel(join(temporary.path, dtype), dtype);
  });
  afterAll(() => opened.model.close());

  test.each([
    [150, 1],
    [16, 7],
    [149, 64],
  ])('chunks of %i and %i agree with decoding bit by bit', async (one, two) => {
    const scores = await scorePrompt(opened, [one, two]);
    expect(scores.size).toBe(2 * (tokens.length - 1));
    const vocab = opened.files.spec.vocabSize;
    const driver = new Driver(opened);
    driver.open(0, 1, { logprobs: vocab });
    for (let position = 1; position < tokens.length; position++) {
      const [sample] = await driver.step([{ slot: 0, tokens: [tokens[position - 1]!] }]);
      const row = fullLogprobs(sample!, vocab);
      const logprob = row[tokens[position]!]!;
      const top = Array.from({ length: TOP }, (_, k) => [sample!.topIds[k], sample!.topLogprobs[k]]);
      const rank = 1 + row.filter((value) => value > logprob).length;
      for (const slot of [0, 1]) expect(scores.get(`${slot}/${position}`)).toEqual({ slot, logprob, rank, top });
    }
    driver.engine.close();
  });

  test('the goldens', async () => {
    const scores = await scorePrompt(opened, [150, 150]);
    const rows = goldenRows(FAMILY, 'F32');
    familyPlan.positions.forEach((position, index) => {
      if (position + 1 >= tokens.length) return;
      const row = rows[index]!;
      const total = Math.log(row.reduce((sum, logit) => sum + Math.exp(logit), 0));
      const expected = row[tokens[position + 1]!]! - total;
      expect(scores.get(`0/${position + 1}`)!.logprob).toBeCloseTo(expected, dtype === 'float32' ? 4 : 0);
    });
  });
});
