import { expect, test } from 'vitest';
import { addStepTokens, STEP_TOKENS_BOUNDS, StepCounts } from '../../../src/control/scheduler/step-counts.ts';

test('steps are counted once, at the lowest bound that holds them', () => {
  const steps = new StepCounts();
  for (const tokens of [1, 1, 2, 8, 9, 16_384, 16_385]) steps.add(tokens, 10);
  const { counts, sum } = steps.tokens();
  expect(counts).toHaveLength(STEP_TOKENS_BOUNDS.length + 1);
  expect(counts.slice(0, 3)).toEqual([2, 2, 1]);
  expect(counts.slice(-2)).toEqual([1, 1]);
  expect(sum).toBe(1 + 1 + 2 + 8 + 9 + 16_384 + 16_385);
  expect(steps).toMatchObject({ steps: 7, micros: 70 });
});

test('what was read does not change, and lives add up', () => {
  const steps = new StepCounts();
  steps.add(4, 1);
  const before = steps.tokens();
  steps.add(4, 1);
  expect(before.sum).toBe(4);
  expect(addStepTokens({ counts: [], sum: 0 }, before)).toEqual(before);
  expect(addStepTokens(before, steps.tokens()).counts[1]).toBe(3);
});
