/**
 * Draws the tokens of one sequence, with the meaning of native/src/ops/sampling.h: logit bias, penalties, then the likeliest token, or
 * temperature, min_p, top_k, top_p and the draw. llama.cpp's samplers come in another order: top_k, top_p and min_p before the temperature.
 * For top_k that is the same. p_i >= min_p * p_max at a temperature T says p_i >= min_p^T * p_max without one. top_p depends on the
 * temperature truly, so it is done here, on the probabilities behind the others.
 */
import type { SamplingSpec } from '../engine/native.ts';
import type { LlamaBinding, LlamaContext, LlamaModel, LlamaSampler, SamplerConfig } from './binding.ts';
import { seedOf, uniform } from './noise.ts';

/** Candidates that are looked at first for top_p; all are, in the end, where their probabilities do not suffice. */
const NUCLEUS_FIRST = 128;
const NUCLEUS_GROWTH = 16;
const NONE = -1;

type Bias = Pick<Required<SamplerConfig>, 'tokenBiasKeys' | 'tokenBiasValues'>;

export interface Vocabulary {
  size: number;
  /** Ids from here on are never sampled. */
  samplable: number;
}

export class SequenceSampler {
  readonly #sampler: LlamaSampler;
  readonly #spec: SamplingSpec;
  readonly #vocabulary: Vocabulary;
  readonly #bias: Bias;
  /** While the sequence may not end. */
  readonly #earlyBias: Bias;

  constructor(binding: LlamaBinding, model: LlamaModel, spec: SamplingSpec, vocabulary: Vocabulary) {
    this.#sampler = new binding.AddonSampler(model);
    this.#spec = spec;
    this.#vocabulary = vocabulary;
    this.#bias = biasOf(spec, vocabulary, []);
    const early = [...spec.stopIds, ...(spec.barredIds ?? [])];
    this.#earlyBias = spec.minTokens > 0 ? biasOf(spec, vocabulary, early) : this.#bias;
  }

  /** The token after `history` (prompt and outputs), from the logits at this place of the batch; -1 where none can be drawn. */
  async next(context: LlamaContext, place: number, history: readonly number[], promptLength: number): Promise<number> {
    const { seed, choice, topP, temperature } = this.#spec;
    const index = history.length - promptLength;
    const config = this.#config(history, promptLength, seedOf(seed, choice, index));
    if (temperature > 0 && topP < 1) return this.#fromNucleus(context, place, config, uniform(seed, choice, index));
    this.#sampler.applyConfig(config);
    return context.sampleToken(place, this.#sampler);
  }

  dispose(): void {
    this.#sampler.dispose();
  }

  #config(history: readonly number[], promptLength: number, seed: number): SamplerConfig {
    const { temperature, topK, minP, minTokens } = this.#spec;
    const bias = history.length - promptLength < minTokens ? this.#earlyBias : this.#bias;
    return {
      temperature,
      seed,
      ...(temperature > 0 && topK > 0 && { topK }),
      ...(temperature > 0 && minP > 0 && { minP: minP ** temperature }),
      ...(bias.tokenBiasKeys.length > 0 && bias),
      ...this.#penalties(history, promptLength),
    };
  }

  /** Repetition counts prompt and output, the others the output alone: a request has one kind (see sessions/engine-limits.ts). */
  #penalties(history: readonly number[], promptLength: number): Partial<SamplerConfig> {
    const { repetitionPenalty = 1, presencePenalty = 0, frequencyPenalty = 0, maxTokens } = this.#spec;
    if (repetitionPenalty === 1 && presencePenalty === 0 && frequencyPenalty === 0) return {};
    return {
      repeatPenaltyTokens: Uint32Array.from(repetitionPenalty === 1 ? history.slice(promptLength) : history),
      repeatPenaltyMaxTokens: promptLength + maxTokens,
      repeatPenalty: repetitionPenalty,
      repeatPenaltyPresencePenalty: presencePenalty,
      repeatPenaltyFrequencyPenalty: frequencyPenalty,
    };
  }

  /** `draw` in [0, 1). */
  async #fromNucleus(context: LlamaContext, place: number, config: SamplerConfig, draw: number): Promise<number> {
    const { topP } = this.#spec;
    // What top_k and min_p have left is little, and all that counts.
    if (config.topK !== undefined || config.minP !== undefined)
      return drawNucleus(await this.#candidates(context, place, config), 1, topP, draw);
    const known = await this.#known(context, place, config);
    for (let keep = NUCLEUS_FIRST; ; keep *= NUCLEUS_GROWTH) {
      const all = keep >= this.#vocabulary.size;
      const pairs = await this.#candidates(context, place, all ? config : { ...config, topK: keep });
      const share = all ? 1 : shareOf(pairs, known);
      if (all || share >= topP) return drawNucleus(pairs, share, topP, draw);
    }
  }

  /** Some token's probability among all. */
  async #known(
    context: LlamaContext,
    place: number,
    config: SamplerConfig,
  ): Promise<{ token: number; probability: number }> {
    // A top_k of all sorts them, which is faster here than what would sort them otherwise.
    this.#sampler.applyConfig({ ...config, topK: this.#vocabulary.size });
    const [token, , probability = 0] = await context.sampleToken(place, this.#sampler, false, true);
    return { token, probability };
  }

  async #candidates(context: LlamaContext, place: number, config: SamplerConfig): Promise<number[]> {
    this.#sampler.applyConfig(config);
    const [, pairs = []] = await context.sampleToken(place, this.#sampler, true, false);
    return pairs;
  }
}

/** The request's bias, with ids that must not come at minus infinity. */
function biasOf(spec: SamplingSpec, { size, samplable }: Vocabulary, banned: readonly number[]): Bias {
  const { biasIds = new Int32Array(0), biasValues = new Float32Array(0) } = spec;
  const bias = new Map<number, number>();
  biasIds.forEach((id, index) => bias.set(id, biasValues[index] ?? 0));
  for (const id of banned) bias.set(id, -Infinity);
  for (let id = samplable; id < size; id++) bias.set(id, -Infinity);
  return { tokenBiasKeys: Uint32Array.from(bias.keys()), tokenBiasValues: Float32Array.from(bias.values()) };
}

/** What part of all probability the candidates have; 0 where that cannot be told from them. */
function shareOf(pairs: readonly number[], known: { token: number; probability: number }): number {
  for (let at = 0; at < pairs.length; at += 2) {
    if (pairs[at] === known.token) return known.probability / (pairs[at + 1] as number);
  }
  return 0;
}

/** From the fewest of the likeliest whose probability reaches topP. Pairs of id and probability, descending; together they are `share`. */
export function drawNucleus(pairs: readonly number[], share: number, topP: number, draw: number): number {
  let mass = 0;
  let end = 0;
  while (end < pairs.length && (end === 0 || mass * share < topP)) {
    mass += pairs[end + 1] as number;
    end += 2;
  }
  let left = draw * mass;
  for (let at = 0; at < end; at += 2) {
    left -= pairs[at + 1] as number;
    if (left < 0) return pairs[at] as number;
  }
  return end === 0 ? NONE : (pairs[end - 2] as number);
}
