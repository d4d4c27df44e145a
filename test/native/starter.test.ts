/** The starter model's goldens: greedy continuations by transformers in float32 from the same bfloat16 weights. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Driver, generate, openModel, type OpenModel } from '../fixtures/engine-driver.ts';
import { STARTER, starterGoldens } from '../fixtures/starter.ts';

let opened: OpenModel;

beforeAll(async () => {
  opened = await openModel(STARTER, 'float32');
});
afterAll(() => opened.model.close());

test('goldens are 32 tokens for at least 20 prompts', () => {
  expect(starterGoldens.length).toBeGreaterThanOrEqual(20);
  expect(starterGoldens.every(({ output_ids, logprobs }) => output_ids.length === 32 && logprobs.length === 32)).toBe(
    true,
  );
});

test('greedy tokens and their logprobs equal the goldens', async () => {
  const driver = new Driver(opened, { maxLogprobs: 1 });
  const results = await generate(
    driver,
    starterGoldens.map(({ prompt_ids }, slot) => ({ slot, ids: prompt_ids, sampling: { maxTokens: 32, logprobs: 1 } })),
  );
  driver.engine.close();
  results.forEach((result, index) => {
    const { text, output_ids, logprobs } = starterGoldens[index]!;
    expect(result.tokens, text).toEqual(output_ids);
    const worst = Math.max(...logprobs.map((logprob, step) => Math.abs(logprob - result.logprobs[step]!)));
    expect(worst, text).toBeLessThanOrEqual(1e-3);
  });
}, 60_000);
