/**
 * The loss of one packed row and its gradient for each new log-probability. N = trainable tokens of the row.
 * docs/training.md has the formulas; tests hold them to the reference client's numbers.
 */
import { importanceRatios, ratioGradients, type Ratios } from './importance.ts';
import type { LossConfig } from './rl-config.ts';

export interface LossTokens {
  /** All N entries. */
  newLogprobs: Float64Array;
  /** NaN: not known, taken as the new one. */
  oldLogprobs: Float64Array;
  /** Those of the rollout, where oldLogprobs were computed anew; null otherwise. NaN: not known. */
  sampleLogprobs: Float64Array | null;
  /** Those of the reference; null without a KL penalty. */
  referenceLogprobs: Float64Array | null;
  entropies: Float64Array;
  advantages: Float64Array;
  weights: Float64Array;
  /** In [0, sequences). */
  sequence: Int32Array;
  sequences: number;
}

export interface RowLoss {
  loss: number;
  /** dL / d(new log-probability). */
  gradients: Float64Array;
  /** Weighted like the loss. */
  entropy: number;
  /** Correlation of old and new probabilities; 0 where there is none. */
  probsCorr: number;
  /** Mean of new (or old) minus reference log-probability; null without a KL penalty. */
  klPolicyRef: number | null;
}

export function rowLoss(tokens: LossTokens, config: LossConfig): RowLoss {
  const { newLogprobs, weights } = tokens;
  const old = tokens.oldLogprobs.map((value, i) => (Number.isNaN(value) ? (newLogprobs[i] ?? 0) : value));
  const differences = newLogprobs.map((value, i) => value - (old[i] ?? 0));
  const ratios = importanceRatios(differences, tokens.sequence, tokens.sequences, config.importanceSamplingLevel);
  const bounded = ratios.ratios.map((ratio) => boundRatio(ratio, config));
  const { advantages, klPolicyRef } = shapedAdvantages(tokens, old, differences, config);
  const truncation = truncationFactors(tokens, old, bounded, config);
  // What multiplies a token's own term in the row's mean.
  const scale = weights.map((weight, i) => (weight * (truncation[i] ?? 1)) / (weights.length + 1e-18));
  const terms = config.ppo
    ? ppoTerms(ratios, bounded, advantages, scale, config)
    : cispoTerms(bounded, advantages, newLogprobs, scale, config);
  return {
    ...terms,
    entropy: sumOf(tokens.entropies, (value, i) => (value * (weights[i] ?? 0)) / weights.length),
    probsCorr: probabilityCorrelation(tokens.oldLogprobs, newLogprobs),
    klPolicyRef,
  };
}

/** max_negative_advantage_importance_sampling_weight bounds every token, whatever its name says. */
function boundRatio(ratio: number, config: LossConfig): number {
  const bounded = config.maxImportanceWeight === null ? ratio : Math.min(ratio, config.maxImportanceWeight);
  if (!config.maskProbRatio) return bounded;
  return bounded > 1 - config.epsilon && bounded < 1 + config.epsilonHigh ? bounded : 0;
}

interface Shaped {
  advantages: Float64Array;
  klPolicyRef: number | null;
}

/** tau and the KL penalty move advantages; no gradient goes through either. */
function shapedAdvantages(
  tokens: LossTokens,
  old: Float64Array,
  differences: Float64Array,
  config: LossConfig,
): Shaped {
  const advantages = tokens.advantages.map((value, i) => value - config.tau * (differences[i] ?? 0));
  const reference = tokens.referenceLogprobs;
  if (reference === null || config.klCoefficient === 0) return { advantages, klPolicyRef: null };
  const source = config.klSource === 'sample' ? old : tokens.newLogprobs;
  const kl = source.map((value, i) => value - (reference[i] ?? 0));
  const average = sumOf(kl, (value) => value / kl.length);
  return {
    advantages: advantages.map((value, i) => value + config.klCoefficient * (average - (kl[i] ?? 0))),
    klPolicyRef: average,
  };
}

/** min(x, U), where x is the ratio, or old over rollout where the old ones were computed anew. */
function truncationFactors(
  tokens: LossTokens,
  old: Float64Array,
  ratios: Float64Array,
  config: LossConfig,
): Float64Array {
  const bound = config.truncatedImportanceSampling;
  if (bound === null) return new Float64Array(old.length).fill(1);
  const sampled = tokens.sampleLogprobs;
  if (sampled === null) return ratios.map((ratio) => Math.min(ratio, bound));
  return old.map((value, i) => {
    const sample = sampled[i] ?? NaN;
    return Math.min(Math.exp(value - (Number.isNaN(sample) ? (tokens.newLogprobs[i] ?? 0) : sample)), bound);
  });
}

type Terms = Pick<RowLoss, 'loss' | 'gradients'>;

/** -clip(ratio) * advantage * logprob, the ratio detached. */
function cispoTerms(
  ratios: Float64Array,
  advantages: Float64Array,
  logprobs: Float64Array,
  scale: Float64Array,
  config: LossConfig,
): Terms {
  const gradients = ratios.map((ratio, i) => -clip(ratio, config) * (advantages[i] ?? 0) * (scale[i] ?? 0));
  return { loss: sumOf(gradients, (gradient, i) => gradient * (logprobs[i] ?? 0)), gradients };
}

/** -min(ratio * advantage, clip(ratio) * advantage). */
function ppoTerms(
  ratios: Ratios,
  bounded: Float64Array,
  advantages: Float64Array,
  scale: Float64Array,
  config: LossConfig,
): Terms {
  let loss = 0;
  const upstream = bounded.map((ratio, i) => {
    const advantage = advantages[i] ?? 0;
    const free = ratio * advantage;
    const clipped = clip(ratio, config) * advantage;
    loss -= Math.min(free, clipped) * (scale[i] ?? 0);
    // A bound that was reached, and a clip that was chosen, hand nothing back.
    const moves = free <= clipped && ratio === ratios.ratios[i];
    return moves ? -advantage * (scale[i] ?? 0) : 0;
  });
  return { loss, gradients: ratioGradients(ratios, upstream) };
}

function clip(ratio: number, config: LossConfig): number {
  return Math.min(Math.max(ratio, 1 - config.epsilon), 1 + config.epsilonHigh);
}

/** Pearson, over the tokens whose old log-probability is known. */
function probabilityCorrelation(old: Float64Array, fresh: Float64Array): number {
  const known = [...old.keys()].filter((i) => !Number.isNaN(old[i] ?? NaN));
  const x = known.map((i) => Math.exp(old[i] ?? 0));
  const y = known.map((i) => Math.exp(fresh[i] ?? 0));
  const averageX = sumOf(x, (value) => value / x.length);
  const averageY = sumOf(y, (value) => value / y.length);
  const covariance = sumOf(x, (value, i) => (value - averageX) * ((y[i] ?? 0) - averageY));
  const spread = Math.sqrt(sumOf(x, (v) => (v - averageX) ** 2) * sumOf(y, (v) => (v - averageY) ** 2));
  const correlation = covariance / spread;
  return Number.isFinite(correlation) ? correlation : 0;
}

function sumOf(values: ArrayLike<number>, term: (value: number, index: number) => number): number {
  let sum = 0;
  for (let i = 0; i < values.length; i++) sum += term(values[i] ?? 0, i);
  return sum;
}
