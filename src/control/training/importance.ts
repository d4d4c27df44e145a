/** Importance-sampling ratios of a row's trainable tokens, and the way back through them. */
import type { ImportanceSamplingLevel } from '../../schemas/rl-config.ts';

/** As the reference client has it: a sequence's mean divides by its tokens plus this. */
const COUNT_EPSILON = 1e-8;

export interface Ratios {
  level: ImportanceSamplingLevel;
  /** N entries, before any clamp. */
  ratios: Float64Array;
  /** N entries: exp(new - old). */
  tokenRatios: Float64Array;
  /** Per sequence: exp(mean(new - old)), and what the mean divides by. */
  sequenceRatios: Float64Array;
  counts: Float64Array;
  /** N entries: the sequence of each token. */
  sequence: Int32Array;
}

/** `differences`: new minus old log-probability; `sequence[i]` in [0, sequences). */
export function importanceRatios(
  differences: Float64Array,
  sequence: Int32Array,
  sequences: number,
  level: ImportanceSamplingLevel,
): Ratios {
  const sums = new Float64Array(sequences);
  const counts = new Float64Array(sequences).fill(COUNT_EPSILON);
  for (let i = 0; i < differences.length; i++) {
    const s = sequence[i] ?? 0;
    sums[s] = (sums[s] ?? 0) + (differences[i] ?? 0);
    counts[s] = (counts[s] ?? 0) + 1;
  }
  const sequenceRatios = sums.map((sum, s) => Math.exp(sum / (counts[s] ?? 1)));
  const tokenRatios = differences.map(Math.exp);
  const ratios = tokenRatios.map((ratio, i) => combine(level, ratio, sequenceRatios[sequence[i] ?? 0] ?? 1));
  return { level, ratios, tokenRatios, sequenceRatios, counts, sequence };
}

function combine(level: ImportanceSamplingLevel, token: number, sequence: number): number {
  if (level === 'sequence') return sequence;
  if (level === 'average') return (token + sequence) / 2;
  return level === 'geometric_average' ? Math.sqrt(token * sequence) : token;
}

/** From dL/d(ratio) to dL/d(new log-probability); a sequence's ratio hands its part to each of its tokens. */
export function ratioGradients(ratios: Ratios, upstream: Float64Array): Float64Array {
  const { level, sequence, counts } = ratios;
  const shared = new Float64Array(counts.length);
  const gradients = new Float64Array(upstream.length);
  for (let i = 0; i < upstream.length; i++) {
    const s = sequence[i] ?? 0;
    const own = ownPart(ratios, i);
    const rest = sharedPart(level, ratios.ratios[i] ?? 0, ratios.sequenceRatios[s] ?? 0);
    gradients[i] = (upstream[i] ?? 0) * own;
    shared[s] = (shared[s] ?? 0) + (upstream[i] ?? 0) * rest;
  }
  return gradients.map((gradient, i) => {
    const s = sequence[i] ?? 0;
    return gradient + (shared[s] ?? 0) / (counts[s] ?? 1);
  });
}

/** d(ratio of token i) / d(log-probability of token i), without what goes through its sequence's mean. */
function ownPart({ level, ratios, tokenRatios }: Ratios, i: number): number {
  if (level === 'sequence') return 0;
  if (level === 'average') return (tokenRatios[i] ?? 0) / 2;
  return level === 'geometric_average' ? (ratios[i] ?? 0) / 2 : (tokenRatios[i] ?? 0);
}

/** d(ratio) / d(mean difference of the sequence). */
function sharedPart(level: ImportanceSamplingLevel, ratio: number, sequenceRatio: number): number {
  if (level === 'sequence') return sequenceRatio;
  if (level === 'average') return sequenceRatio / 2;
  return level === 'geometric_average' ? ratio / 2 : 0;
}
