/** Supervised fine-tuning over HTTP: a new style of answering, on questions that were not taught. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { CONFIG, conversations, HELD_OUT, measure } from '../../examples/sft/answer-style.ts';
import { startTraining, type Training } from './training.ts';

let training: Training;
beforeAll(async () => {
  training = await startTraining();
});
afterAll(() => training.server.stop());

it('teaches a fixed style to at least 95 % of held-out questions', async () => {
  const { client } = training;
  const model = await client.register('e2e', 'style');
  expect(HELD_OUT.length).toBeGreaterThanOrEqual(15);
  expect((await measure(client, client.inferenceName(model))).share).toBe(0);
  const data = conversations();
  const steps = await client.trainSft(model, data, CONFIG);
  expect(steps).toHaveLength(Math.ceil(data.length / CONFIG.batch_size));
  const { share, answers } = await measure(client, client.inferenceName(model));
  expect(share, JSON.stringify(answers)).toBeGreaterThanOrEqual(0.95);
}, 240_000);
