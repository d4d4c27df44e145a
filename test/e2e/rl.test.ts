/** Reinforcement learning over HTTP: from chance to nearly always right. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { learn } from '../../examples/rl/loop.ts';
import { CHANCE, CONFIG, QUESTIONS, scenarios } from '../../examples/rl/yes-no-maybe.ts';
import { startTraining, type Training } from './training.ts';

let training: Training;
beforeAll(async () => {
  training = await startTraining();
});
afterAll(() => training.server.stop());

/**
 * Once in ten thousand samples of this model: a thought of its own behind the empty one of the prompt. Training puts it in that one's place, as
 * clients of this interface do, so it is not what was sampled.
 */
function beginsWithThought(trajectory: unknown): boolean {
  return JSON.stringify(trajectory).includes('"content":"<think>');
}

describe('reinforcement learning', () => {
  it('goes from chance to a mean reward of 0.9 within 30 steps of 64 rollouts', async () => {
    const { client } = training;
    const model = await client.register('e2e', 'maybe');
    const rewards = await learn(client, model, {
      steps: 31,
      scenarios,
      config: CONFIG,
      target: 0.9,
      report: () => undefined,
    });
    expect(rewards[0]).toBeLessThan(CHANCE + 0.2);
    expect(rewards.at(-1), rewards.map((reward) => reward.toFixed(2)).join(' ')).toBeGreaterThanOrEqual(0.9);

    // Every step serves still, with its own weights.
    const likely = async (step: number): Promise<number> => {
      const messages = [{ role: 'user' as const, content: QUESTIONS[0] ?? '' }];
      const name = client.inferenceName(model, step);
      const { choices } = await client.openai.chat.completions.create({
        model: name,
        messages,
        temperature: 1,
        top_p: 1,
        n: 32,
      });
      return choices.filter(({ message }) => message.content === 'maybe').length;
    };
    expect(await likely(rewards.length - 1)).toBeGreaterThan(await likely(0));
  }, 240_000);

  it('computes the log-probabilities that the server sampled with', async () => {
    const { client } = training;
    const model = await client.register('e2e', 'on-policy');
    const rollouts = async () =>
      (await Promise.all(scenarios().map((play) => play(client, client.inferenceName(model))))).map((trajectories) => ({
        trajectories: trajectories.filter((trajectory) => !beginsWithThought(trajectory)),
      }));
    // The reference is the model that sampled: the mean of rollout minus trainer is exactly nothing, for the identity ...
    const config = { learning_rate: 3e-3, kl_penalty_coef: 1, kl_penalty_source: 'sample' };
    const [first] = await client.train(model, await rollouts(), { ...config, kl_penalty_reference_step: 0 });
    expect(first).toMatchObject({ kl_policy_ref: 0 });
    expect(Number(first?.['probs_corr'])).toBeCloseTo(1, 9);
    // ... and for what was trained. Against the base model it is something.
    const [second] = await client.train(model, await rollouts(), { ...config, kl_penalty_reference_step: 1 });
    expect(second).toMatchObject({ kl_policy_ref: 0 });
    expect(Number(second?.['probs_corr'])).toBeCloseTo(1, 9);
    const [third] = await client.train(model, await rollouts(), config);
    expect(third?.['kl_policy_ref']).not.toBe(0);
  }, 120_000);
});
