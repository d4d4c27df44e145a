/** The loop of reinforcement learning: sample groups with the newest step, reward them, train. */
import type { TrainedModel, TrainingClient, Trajectory } from '../lib/client.ts';

/** Plays one scenario with the model of that name; several at the same time. */
export type Play = (client: TrainingClient, modelName: string) => Promise<Trajectory[]>;

export interface LoopOptions {
  steps: number;
  /** One group each; its trajectories are compared with each other. */
  scenarios: (step: number) => Play[];
  config: object;
  /** The loop ends when a step's mean reward reaches this. */
  target: number;
  /** Told after each step's rollouts. */
  report: (step: number, reward: number) => void;
}

/** Returns the mean reward of each step's rollouts; each was sampled with the model that the step before made. */
export async function learn(client: TrainingClient, model: TrainedModel, options: LoopOptions): Promise<number[]> {
  const rewards: number[] = [];
  for (let step = 0; step < options.steps; step++) {
    const name = client.inferenceName(model);
    const groups = await Promise.all(options.scenarios(step).map((play) => play(client, name)));
    const reward = mean(groups.flat().map((trajectory) => trajectory.reward));
    rewards.push(reward);
    options.report(step, reward);
    if (reward >= options.target) break;
    await client.train(
      model,
      groups.map((trajectories) => ({ trajectories })),
      options.config,
    );
  }
  return rewards;
}

function mean(values: number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
