/** Prompts are read in pieces that keep steps near a time while others generate. */
import { expect, it } from 'vitest';
import { PAGE_SIZE } from '../../../src/control/engine/native.ts';
import type { Sequence } from '../../../src/control/scheduler/sequence.ts';
import { StepBudget } from '../../../src/control/scheduler/step-budget.ts';
import { Driver, options, request } from './drive.ts';

const MAX = 2048;
const budget = (stepTargetMs?: number, enableChunkedPrefill = true) =>
  new StepBudget({ maxBatchTokens: MAX, enableChunkedPrefill, ...(stepTargetMs !== undefined && { stepTargetMs }) });
const sequences = (...missing: number[]) => missing.map((each) => ({ missing: each }) as Sequence);
const generating = (count: number) => sequences(...Array.from({ length: count }, () => 1));

it('is whole while nobody generates, and before a prompt has been read', () => {
  const steps = budget(100);
  expect(steps.tokens(generating(3))).toBe(MAX);
  steps.note(100, 100_000);
  expect(steps.tokens(sequences(5000, 17))).toBe(MAX);
  expect(steps.tokens([])).toBe(MAX);
});

it('is what a token took in the steps before, in whole pages beside those that generate', () => {
  const steps = budget(250);
  steps.note(500, 500_000);
  // A token takes a millisecond.
  expect(steps.tokens(generating(3))).toBe(3 + 240);
  expect(steps.tokens([...generating(3), ...sequences(4000)])).toBe(3 + 240);
  // Steps become twice as fast.
  for (let step = 0; step < 40; step++) steps.note(500, 250_000);
  expect(steps.tokens(generating(10))).toBe(10 + 480);
});

it('leaves prompts as many tokens as generate, and four pages', () => {
  const slow = budget(250);
  slow.note(100, 100_000_000);
  expect(slow.tokens(generating(2))).toBe(2 + 4 * PAGE_SIZE);
  expect(slow.tokens(generating(200))).toBe(400);
  expect(slow.tokens(generating(1500))).toBe(MAX);
});

it('never exceeds the tokens of a step', () => {
  const fast = budget(250);
  fast.note(2000, 20);
  expect(fast.tokens(generating(1))).toBe(MAX);
});

it.each([
  ['no target', budget()],
  ['a target of 0', budget(0)],
  ['whole prompts', budget(250, false)],
])('with %s steps are bounded by their tokens alone', (_name, steps) => {
  steps.note(100, 100_000_000);
  expect(steps.tokens(generating(2))).toBe(MAX);
});

it('a long prompt does not hold up who generates, and everybody gets what they get without', async () => {
  const [first, long] = [request(1, 20, { maxTokens: 60 }), request(2, 900, { maxTokens: 5 })];
  const bounds = { maxBatchTokens: 1024, maxModelLen: 1024 };
  const sizes: number[] = [];
  const driven = async (stepTargetMs: number) => {
    sizes.length = 0;
    const joins = (step: number) => void (step === 4 && driver.loop.submit([long]));
    const driver: Driver = new Driver(options({ ...bounds, stepTargetMs }), { onStep: joins });
    const step = driver.engine.step.bind(driver.engine);
    driver.engine.step = async (plan) => {
      const tokens = plan.tokens.length;
      sizes.push(tokens);
      // A token takes a millisecond.
      return { ...(await step(plan)), micros: 1000 * tokens };
    };
    await driver.run([first]);
    return [driver.of(1), driver.of(2)];
  };
  const whole = await driven(0);
  expect(Math.max(...sizes)).toBe(901);
  expect(await driven(100)).toEqual(whole);
  expect(Math.max(...sizes)).toBe(97);
  expect(whole.map(({ tokens }) => tokens.length)).toEqual([60, 5]);
});
