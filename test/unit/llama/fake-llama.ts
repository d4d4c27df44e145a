/**
 * node-llama-cpp without a model: logits are a hash of every token of the sequence, and samplers do what llama.cpp's do, in its order
 * (bias, penalties, top_k, min_p, temperature, draw). Checks its calls as strictly as the real one would have to.
 */
import type {
  DetailedSample,
  LlamaBinding,
  LlamaContext,
  LlamaModel,
  LlamaSampler,
  OpenLlama,
  SamplerConfig,
} from '../../../src/control/llama/binding.ts';

export const VOCABULARY = 64;

/** Spread over some 12 nats. */
export function logitsAfter(tokens: readonly number[]): number[] {
  let state = 2166136261;
  for (const token of tokens) state = Math.imul(state ^ token, 16777619) >>> 0;
  return Array.from({ length: VOCABULARY }, (_, id) => (scramble(state + id) / 2 ** 32) * 12 - 6);
}

function scramble(value: number): number {
  let z = value >>> 0;
  z = Math.imul(z ^ (z >>> 16), 0x21f0aaad) >>> 0;
  z = Math.imul(z ^ (z >>> 15), 0x735a2d97) >>> 0;
  return (z ^ (z >>> 15)) >>> 0;
}

interface Candidate {
  id: number;
  logit: number;
}

function probabilities(candidates: Candidate[]): number[] {
  const most = Math.max(...candidates.map(({ logit }) => logit));
  const weights = candidates.map(({ logit }) => Math.exp(logit - most));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / sum);
}

export class FakeSampler implements LlamaSampler {
  config: SamplerConfig | null = null;
  disposed = false;

  applyConfig(config: SamplerConfig): void {
    if (this.disposed) throw new Error('Sampler is disposed');
    if (!Number.isInteger(config.seed) || config.seed < 0 || config.seed >= 2 ** 32 - 1)
      throw new Error('a wrong seed');
    this.config = config;
  }

  dispose(): void {
    this.disposed = true;
  }

  /** Descending, as the chain leaves them, and the drawn one. */
  sample(logits: readonly number[]): { kept: Candidate[]; token: number } {
    const { config } = this;
    if (!config) throw new Error('no config');
    let kept = logits.map((logit, id) => ({ id, logit }));
    config.tokenBiasKeys?.forEach((id, at) => {
      const candidate = kept[id];
      if (candidate) candidate.logit += config.tokenBiasValues?.[at] ?? 0;
    });
    penalise(kept, config);
    kept.sort((a, b) => b.logit - a.logit);
    if (config.temperature <= 0) return { kept, token: kept[0]?.id ?? -1 };
    kept = kept.slice(0, config.topK ?? kept.length);
    const { minP = 0, temperature } = config;
    if (minP > 0) kept = kept.filter(({ logit }) => logit >= (kept[0]?.logit ?? 0) + Math.log(minP));
    kept = kept.map(({ id, logit }) => ({ id, logit: logit / temperature }));
    let left = scramble(config.seed) / 2 ** 32;
    const drawn = probabilities(kept).findIndex((probability) => (left -= probability) < 0);
    return { kept, token: kept[drawn]?.id ?? -1 };
  }
}

function penalise(candidates: Candidate[], config: SamplerConfig): void {
  const { repeatPenaltyTokens: all, repeatPenaltyMaxTokens = 64, repeatPenalty = 1 } = config;
  if (!all) return;
  const counts = new Map<number, number>();
  for (const token of all.slice(-repeatPenaltyMaxTokens)) counts.set(token, (counts.get(token) ?? 0) + 1);
  for (const candidate of candidates) {
    const count = counts.get(candidate.id) ?? 0;
    if (count === 0) continue;
    candidate.logit = candidate.logit <= 0 ? candidate.logit * repeatPenalty : candidate.logit / repeatPenalty;
    candidate.logit -= count * (config.repeatPenaltyFrequencyPenalty ?? 0) + (config.repeatPenaltyPresencePenalty ?? 0);
  }
}

interface ContextOptions {
  contextSize: number;
  batchSize: number;
  sequences: number;
}

export class FakeContext implements LlamaContext {
  static last: FakeContext | null = null;
  readonly options: ContextOptions;
  readonly sequences: number[][];
  readonly batches: { sequence: number; count: number }[][] = [];
  #room = 0;
  #batch: { sequence: number; count: number }[] = [];
  #logits = new Map<number, number[]>();
  #places = 0;
  #decoding = false;

  constructor(_model: LlamaModel, options: ContextOptions) {
    this.options = options;
    this.sequences = Array.from({ length: options.sequences }, () => []);
    FakeContext.last = this;
  }

  init(): Promise<boolean> {
    return Promise.resolve(true);
  }

  initBatch(size: number): void {
    if (size < 1 || size > this.options.batchSize) throw new RangeError('Invalid batch size');
    this.#room = size;
    this.#places = 0;
    this.#batch = [];
    this.#logits = new Map();
  }

  addToBatch(sequence: number, position: number, tokens: Uint32Array, logits: Uint32Array): Uint32Array {
    const held = this.sequences[sequence];
    if (!held || held.length !== position) throw new Error(`sequence ${sequence} is not at ${position}`);
    if (tokens.length > this.#room) throw new RangeError('Tokens exceed the initialized batch size');
    if ((this.#batch.at(-1)?.sequence ?? -1) >= sequence) throw new Error('sequences do not ascend');
    const most = this.options.contextSize / this.options.sequences;
    if (held.length + tokens.length > most) throw new Error('could not find a KV slot for the batch');
    this.#room -= tokens.length;
    this.#batch.push({ sequence, count: tokens.length });
    const places = Uint32Array.from(logits, (at) => this.#places + at);
    tokens.forEach((token, at) => {
      if (token >= VOCABULARY) throw new Error(`token ${token}`);
      held.push(token);
      if (logits.includes(at)) this.#logits.set(this.#places + at, logitsAfter(held));
    });
    this.#places += tokens.length;
    return places;
  }

  async decodeBatch(): Promise<void> {
    if (this.#decoding || this.#room !== 0) throw new Error('a batch that is not full');
    this.#decoding = true;
    this.batches.push(this.#batch);
    await new Promise((resolve) => setImmediate(resolve));
    this.#decoding = false;
  }

  sampleToken(place: number, sampler: LlamaSampler): Promise<number>;
  sampleToken(place: number, sampler: LlamaSampler, list: boolean, confidence: boolean): Promise<DetailedSample>;
  async sampleToken(
    place: number,
    sampler: LlamaSampler,
    list?: boolean,
    confidence?: boolean,
  ): Promise<number | DetailedSample> {
    const logits = this.#logits.get(place);
    if (!logits) throw new Error(`no logits at ${place}`);
    const { kept, token } = (sampler as FakeSampler).sample(logits);
    if (list === undefined) return token;
    const shares = probabilities(kept);
    const pairs = list ? kept.flatMap(({ id }, at) => [id, shares[at] ?? 0]) : undefined;
    const own = kept.findIndex(({ id }) => id === token);
    return [token, pairs, confidence ? shares[own] : undefined];
  }

  disposeSequence(sequence: number): void {
    this.sequences[sequence] = [];
  }
}

let complainOf: (line: string) => void = () => {};

class FakeModel implements LlamaModel {
  readonly #path: string;
  readonly #onLoadProgress: (share: number) => void;

  constructor(path: string, { onLoadProgress }: { onLoadProgress: (share: number) => void }) {
    this.#path = path;
    this.#onLoadProgress = onLoadProgress;
  }

  init(): Promise<boolean> {
    this.#onLoadProgress(1);
    const broken = this.#path.includes('broken');
    // Behind the answer, as the real one's may come.
    if (broken) setTimeout(() => complainOf('a tensor is missing'), 1);
    return Promise.resolve(!broken);
  }

  getTotalSize(): number {
    return 1000;
  }
}

export const FAKE_LLAMA: LlamaBinding = {
  AddonModel: FakeModel,
  AddonContext: FakeContext,
  AddonSampler: FakeSampler,
  getIsArchSupported: (architecture) => architecture !== 'unheard-of',
};

export const openFakeLlama: OpenLlama = (_threads, complain) => {
  complainOf = complain;
  complain('a complaint');
  return Promise.resolve({ binding: FAKE_LLAMA, version: 'b1' });
};
