/** The distribution that the native engine draws from: vLLM's order of operations, written down naively. */
import type { SamplingSpec } from '../../../src/control/engine/native.ts';

export interface Situation {
  logits: readonly number[];
  prompt: readonly number[];
  output: readonly number[];
  /** Ids from here on are never sampled. */
  samplable: number;
}

/** Probabilities by id; `spec.temperature` above 0. */
export function distribution(spec: SamplingSpec, { logits: raw, prompt, output, samplable }: Situation): number[] {
  const { temperature, minP, topK, topP, repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0 } = spec;
  const history = [...prompt, ...output];
  let logits = raw.map((logit, id) => (id < samplable ? logit : -Infinity));
  const early = [...spec.stopIds, ...(spec.barredIds ?? [])];
  if (output.length < spec.minTokens) for (const id of early) logits[id] = -Infinity;
  spec.biasIds?.forEach((id, at) => (logits[id] = (logits[id] ?? 0) + (spec.biasValues?.[at] ?? 0)));
  logits = logits.map((logit, id) => {
    const count = output.filter((token) => token === id).length;
    const repeated = history.includes(id) ? (logit > 0 ? logit / repetitionPenalty : logit * repetitionPenalty) : logit;
    return repeated - frequencyPenalty * count - (count > 0 ? presencePenalty : 0);
  });
  let kept = softmax(logits.map((logit) => logit / temperature));
  const most = Math.max(...kept);
  kept = normal(kept.map((p) => (p >= minP * most ? p : 0)));
  const ranked = () => kept.map((p, id) => ({ p, id })).sort((a, b) => b.p - a.p);
  if (topK > 0) for (const { id } of ranked().slice(topK)) kept[id] = 0;
  kept = normal(kept);
  let mass = 0;
  for (const { p, id } of ranked()) {
    if (mass >= topP) kept[id] = 0;
    mass += p;
  }
  return normal(kept);
}

function softmax(logits: readonly number[]): number[] {
  const most = Math.max(...logits);
  return normal(logits.map((logit) => Math.exp(logit - most)));
}

function normal(values: readonly number[]): number[] {
  const sum = values.reduce((a, b) => a + b, 0);
  return values.map((value) => value / sum);
}

/**
 * Ids that were drawn more or less often than five standard deviations allow (and a few draws, for the many that are rare); what has no
 * probability may never come.
 */
export function implausible(counts: readonly number[], expected: readonly number[]): number[] {
  const draws = counts.reduce((a, b) => a + b, 0);
  return expected.flatMap((p, id) => {
    const slack = 5 * Math.sqrt(draws * p * (1 - p)) + (p > 0 ? 4 : 0);
    return Math.abs((counts[id] ?? 0) - draws * p) <= slack ? [] : [id];
  });
}

const BIAS = { biasIds: Int32Array.of(9, 30), biasValues: Float32Array.of(4, -3) };
const STOPS = { stopIds: Int32Array.of(9, 10, 11, 12, 13, 14), temperature: 2 };

/** For an output of five tokens, 9 among them. */
export const CASES: readonly [name: string, changes: Partial<SamplingSpec>][] = [
  ['alone', {}],
  ['at a temperature', { temperature: 0.7 }],
  ['top_k', { temperature: 1.5, topK: 5 }],
  ['min_p at a temperature', { temperature: 2, minP: 0.1 }],
  ['top_p', { topP: 0.6 }],
  ['top_p at a low temperature', { temperature: 0.5, topP: 0.8 }],
  ['top_p at a high temperature', { temperature: 2.5, topP: 0.9 }],
  ['top_p behind top_k', { temperature: 1.3, topK: 6, topP: 0.7 }],
  ['top_p behind min_p', { temperature: 1.7, minP: 0.05, topP: 0.7 }],
  ['a bias', { temperature: 1.2, ...BIAS }],
  ['a bias below top_p', { temperature: 1.2, topP: 0.75, ...BIAS }],
  ['presence and frequency penalties', { presencePenalty: 1.1, frequencyPenalty: 0.9 }],
  ['penalties below top_p', { presencePenalty: 1.1, frequencyPenalty: 0.9, topP: 0.8, temperature: 1.4 }],
  ['ends that may not come yet', { minTokens: 6, ...STOPS }],
  ['what may not come before an end', { minTokens: 6, ...STOPS, barredIds: Int32Array.of(15, 16, 17) }],
  ['ends that may come', { minTokens: 5, ...STOPS }],
];
