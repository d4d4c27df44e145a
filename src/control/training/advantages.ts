/** From rewards to what each token of a job weighs. Doubles throughout. */

/** Keeps a standard deviation of zero from dividing. */
const EPSILON = 1e-6;

/** Of one group: the reward minus the mean, over the population's standard deviation where `scale`. Exactly 0 where all are equal. */
export function groupAdvantages(rewards: readonly number[], scale: boolean): number[] {
  const centred = centre(rewards);
  if (!scale) return centred;
  const deviation = Math.sqrt(mean(centred.map((value) => value * value)));
  return centred.map((value) => value / (deviation + EPSILON));
}

function centre(rewards: readonly number[]): number[] {
  // A mean of equal numbers can be off by a rounding, and then every advantage would be noise.
  if (rewards.every((reward) => reward === rewards[0])) return rewards.map(() => 0);
  const average = mean(rewards);
  return rewards.map((reward) => reward - average);
}

/** Of a trajectory with so many trainable tokens in all its histories. */
export function trajectoryWeight(trainableTokens: number): number {
  return 1 / (trainableTokens + EPSILON);
}

/** A sequence's share of the job's tokens; every token of it has the same advantage and weight. */
export interface SequenceWeight {
  trainableTokens: number;
  advantage: number;
  weight: number;
}

/**
 * Over all trainable tokens of the job: the mean weight becomes 1, then `balance` in [-1, 1] shrinks the negative (> 0) or the
 * positive (< 0) advantages, then the mean of |advantage| * weight becomes 1. In place.
 */
export function normalizeWeights(sequences: readonly SequenceWeight[], balance: number): void {
  const averageWeight = tokenMean(sequences, ({ weight }) => weight);
  for (const sequence of sequences) {
    sequence.weight /= averageWeight;
    if (sequence.advantage < 0) sequence.advantage *= 1 - Math.max(balance, 0);
    else sequence.advantage *= 1 + Math.min(balance, 0);
  }
  const size = tokenMean(sequences, ({ advantage, weight }) => Math.abs(advantage) * weight);
  // All on the side that the balance takes away: nothing is left to scale.
  if (size > 0) for (const sequence of sequences) sequence.advantage /= size;
}

function tokenMean(sequences: readonly SequenceWeight[], value: (sequence: SequenceWeight) => number): number {
  let sum = 0;
  let tokens = 0;
  for (const sequence of sequences) {
    sum += sequence.trainableTokens * value(sequence);
    tokens += sequence.trainableTokens;
  }
  return tokens === 0 ? 0 : sum / tokens;
}

export function mean(values: readonly number[]): number {
  if (values.length === 0) return 0;
  let sum = 0;
  for (const value of values) sum += value;
  return sum / values.length;
}

/** Divides by the count, not by one less. */
export function populationStandardDeviation(values: readonly number[]): number {
  return Math.sqrt(mean(centre(values).map((value) => value * value)));
}
