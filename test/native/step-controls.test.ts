/** Controls that hold for one step alone: what they do then, and that nothing of them is left afterwards. */
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { SamplingSpec, StepControl } from '../../src/control/engine/native.ts';
import { Driver, type OpenModel, type Row } from '../fixtures/engine-driver.ts';
import { temporaryDirectory } from '../fixtures/tiny-model.ts';
import { openTable, TABLE_VOCAB } from './sampling-cases.ts';

const temporary = temporaryDirectory();
let opened: OpenModel;
/** After every token: id i has the logit -i / 8. */
const LOGITS = Float32Array.from({ length: 32 }, (_, id) => -id / 8);
beforeAll(async () => {
  opened = await openTable(join(temporary.path, 'table'), LOGITS);
});
afterAll(() => {
  opened.model.close();
  temporary.remove();
});

type Control = Omit<StepControl, 'slot'>;
const bias = (...pairs: [number, number][]): Control => ({
  biasIds: Int32Array.from(pairs, ([id]) => id),
  biasValues: Float32Array.from(pairs, ([, value]) => value),
});
const allowed = (...ids: number[]): Control => ({ allowedIds: Int32Array.from(ids) });

/** Tokens of one sequence whose steps have these controls. */
async function run(sampling: Partial<SamplingSpec>, controls: (Control | undefined)[]): Promise<number[]> {
  const driver = new Driver(opened);
  driver.open(0, 3, sampling);
  const tokens: number[] = [];
  for (const control of controls) {
    const row: Row = { slot: 0, tokens: tokens.length === 0 ? [1, 2, 3] : [-1] };
    const [sample] = await driver.step([control ? { ...row, control } : row]);
    tokens.push(sample!.token);
  }
  driver.engine.close();
  return tokens;
}

test('a bias and an allow-set hold for their step', async () => {
  expect(await run({}, [undefined, bias([7, 100]), undefined, allowed(9, 12), bias([12, 100]), undefined])).toEqual([
    0, 7, 0, 9, 12, 0,
  ]);
});

test('they join the controls of the sequence', async () => {
  const biasIds = Int32Array.of(5);
  const sampling = { biasIds, biasValues: Float32Array.of(1), allowedIds: Int32Array.of(4, 5, 6) };
  // Of 4, 5 and 6: 5 with the sequence's bias; 6 where the step adds more; both kinds of allowed ids hold together.
  expect(await run(sampling, [undefined, bias([6, 2]), allowed(6, 20), undefined])).toEqual([5, 6, 6, 5]);
});

test('the processed log-probabilities are those of the same controls given at the opening', async () => {
  const shape = { temperature: 0.7, topK: 6, logprobs: TABLE_VOCAB, logprobsMode: 'processed', seed: 3n } as const;
  const control = { ...bias([3, 2], [8, -4]), ...allowed(1, 3, 5, 8, 13) };
  const sampleOf = async (atOpening: boolean) => {
    const driver = new Driver(opened);
    driver.open(0, 3, atOpening ? { ...shape, ...control } : shape);
    const row: Row = { slot: 0, tokens: [1, 2, 3] };
    const [sample] = await driver.step([atOpening ? row : { ...row, control }]);
    driver.engine.close();
    return sample;
  };
  const expected = await sampleOf(true);
  expect(expected!.topIds.length).toBeGreaterThan(3);
  expect(await sampleOf(false)).toEqual(expected);
});

test('the raw log-probability does not know them, and a batch mate does not either', async () => {
  const driver = new Driver(opened);
  for (const slot of [0, 1]) driver.open(slot, 3, { logprobs: 2 });
  const tokens = [1, 2, 3];
  const [steered, plain] = await driver.step([
    { slot: 0, tokens, control: bias([7, 100]) },
    { slot: 1, tokens },
  ]);
  driver.engine.close();
  expect([steered!.token, plain!.token]).toEqual([7, 0]);
  expect(steered!.topLogprobs).toEqual(plain!.topLogprobs);
});

test('an allow-set that leaves nothing ends the sequence by itself', async () => {
  const driver = new Driver(opened);
  driver.open(0, 3, { allowedIds: Int32Array.of(4) });
  const [sample] = await driver.step([{ slot: 0, tokens: [1, 2, 3], control: allowed(5) }]);
  driver.engine.close();
  expect(sample!.finish).toBe(5);
});
