import { expect, test } from 'vitest';
import { addStepTokens, STEP_TOKENS_BOUNDS, StepTokens } from '../../../src/control/scheduler/step-tokens.ts';

test('steps are counted once, at the lowest bound that holds them', () => {
  const steps = new StepTokens();
  for (const tokens of [1, 1, 2, 8, 9, 16_384, 16_385]) steps.add(tokens);
  const { counts, sum } = steps.read();
  expect(counts).toHaveLength(STEP_TOKENS_BOUNDS.length + 1);
  expect(counts.slice(0, 3)).toEqual([2, 2, 1]);
  expect(counts.slice(-2)).toEqual([1, 1]);
  expect(sum).toBe(1 + 1 + 2 + 8 + 9 + 16_384 + 16_385);
});

test('what was read does not change, and lives add up', () => {
  const steps = new StepTokens();
  steps.add(4);
  const before = steps.read();
  steps.add(4);
  expect(before.sum).toBe(4);
  expect(addStepTokens({ counts: [], sum: 0 }, before)).toEqual(before);
  expect(addStepTokens(before, steps.read()).counts[1]).toBe(3);
});
