/**
 * A TrainingEngine without native code: a bigram model whose logits are a bilinear function of the adapter's factors, with exact
 * gradients and AdamW in FP32. It can be told to die at any call.
 */
import type { ModelSpec } from '../../../src/control/engine/native.ts';
import {
  TrainerLostError,
  type AdapterRef,
  type AdapterWeights,
  type OptimizerState,
  type OptimizerStep,
  type RowRoom,
  type RowScores,
  type StepOutcome,
  type TrainerSession,
  type TrainerState,
  type TrainingEngine,
  type TrainRow,
} from '../../../src/control/engine/training.ts';

export const FAKE_SPEC: ModelSpec = {
  architecture: 'qwen3',
  vocabSize: 4096,
  hiddenSize: 8,
  intermediateSize: 12,
  layers: 1,
  heads: 2,
  kvHeads: 1,
  headDim: 4,
  rmsNormEps: 1e-6,
  ropeTheta: 10_000,
  ropeScaling: { type: 'none' },
  maxPosition: 1024,
  slidingWindow: 0,
  windowLayers: new Uint8Array(1),
  qkvBias: false,
  outputBias: false,
  mlpBias: false,
  qkNorm: true,
  tiedEmbeddings: true,
};

/** Ids fold onto so many classes. */
const CLASSES = 8;

export class FakeEngine implements TrainingEngine {
  readonly loaded: AdapterRef[] = [];
  readonly optimized: OptimizerStep[] = [];
  /** What rows were compared with. */
  readonly references: ('base' | AdapterWeights)[] = [];
  /** Calls of sessions so far. */
  calls = 0;
  /** The call at which the engine dies, once. */
  dieAt = Infinity;
  /** Awaited before each call. */
  beforeCall: (call: number) => Promise<void> | void = () => undefined;
  /** The next optimize finds a gradient that is not finite. */
  poison = false;
  openError: Error | null = null;
  open = 0;
  /** Of the sessions that open from now on. */
  room: RowRoom = { maxTokens: 32_768, bytes: 2 ** 40, tokenBytes: 1, pageBytes: 1 };

  async openTrainer(state: TrainerState): Promise<TrainerSession> {
    await Promise.resolve();
    if (this.openError) throw this.openError;
    this.open++;
    return new FakeSession(this, state);
  }

  loadAdapter(adapter: AdapterRef): Promise<void> {
    this.loaded.push(adapter);
    return Promise.resolve();
  }

  unloadAdapter(): Promise<void> {
    return Promise.resolve();
  }

  async call(): Promise<void> {
    const number = this.calls++;
    await this.beforeCall(number);
    await Promise.resolve();
    if (number !== this.dieAt) return;
    throw new TrainerLostError('The engine process ended.');
  }
}

class FakeSession implements TrainerSession {
  readonly room: RowRoom;
  readonly #engine: FakeEngine;
  readonly #weights: AdapterWeights;
  #optimizer: OptimizerState | null;
  #gradients: { a: Float64Array; b: Float64Array }[];
  #row: TrainRow | null = null;
  #closed = false;

  constructor(engine: FakeEngine, state: TrainerState) {
    this.#engine = engine;
    this.room = engine.room;
    const copy = structuredClone(state);
    this.#weights = copy.weights;
    this.#optimizer = copy.optimizer;
    this.#gradients = this.#zeros();
  }

  async forward(row: TrainRow, weights: 'current' | 'base' | AdapterWeights): Promise<RowScores> {
    await this.#call();
    if (weights === 'current') this.#row = row;
    else this.#engine.references.push(weights);
    const used = weights === 'current' ? this.#weights : weights;
    const scores = { logprobs: new Float32Array(row.tokens.length), entropies: new Float32Array(row.tokens.length) };
    row.targets.forEach((target, at) => {
      if (target < 0) return;
      const logs = logSoftmax(logits(used, row.tokens[at] ?? 0));
      scores.logprobs[at] = logs[target % CLASSES] ?? 0;
      scores.entropies[at] = -logs.reduce((sum, log) => sum + Math.exp(log) * log, 0);
    });
    return scores;
  }

  async backward(gradients: Float32Array): Promise<void> {
    await this.#call();
    const row = this.#row;
    if (!row || gradients.length !== row.tokens.length) throw new Error('backward does not fit the last forward');
    row.targets.forEach((target, at) => {
      if (target < 0) return;
      const token = row.tokens[at] ?? 0;
      const probabilities = logSoftmax(logits(this.#weights, token)).map(Math.exp);
      const upstream = probabilities.map((p, k) => ((k === target % CLASSES ? 1 : 0) - p) * (gradients[at] ?? 0));
      this.#spread(token, upstream);
    });
  }

  #spread(token: number, upstream: number[]): void {
    this.#weights.factors.forEach(({ a, b, rank }, f) => {
      const into = this.#gradients[f];
      const [inputs, outputs] = [a.length / rank, b.length / rank];
      upstream.forEach((u, k) => {
        for (let r = 0; r < rank && into; r++) {
          const [i, j] = [r * inputs + (token % inputs), (k % outputs) * rank + r];
          into.a[i] = (into.a[i] ?? 0) + this.#weights.scale * u * (b[j] ?? 0);
          into.b[j] = (into.b[j] ?? 0) + this.#weights.scale * u * (a[i] ?? 0);
        }
      });
    });
  }

  async optimize(step: OptimizerStep): Promise<StepOutcome> {
    await this.#call();
    this.#engine.optimized.push(step);
    const gradients = this.#gradients;
    this.#gradients = this.#zeros();
    const all = gradients.flatMap(({ a, b }) => [a, b]);
    const gradNorm = Math.sqrt(all.reduce((sum, values) => sum + values.reduce((s, g) => s + g * g, 0), 0));
    if (this.#engine.poison || !Number.isFinite(gradNorm)) {
      this.#engine.poison = false;
      return { gradNorm: NaN, applied: false };
    }
    const optimizer = (this.#optimizer ??= this.#fresh());
    optimizer.steps++;
    const clip = Math.min(1, step.maxGradNorm / (gradNorm + 1e-6));
    this.#weights.factors.forEach(({ a, b }, f) => {
      const moments = optimizer.moments[f];
      if (!moments) return;
      adamW(a, gradients[f]?.a ?? [], moments.a, optimizer.steps, clip, step);
      adamW(b, gradients[f]?.b ?? [], moments.b, optimizer.steps, clip, step);
    });
    return { gradNorm, applied: true };
  }

  async state(): Promise<TrainerState> {
    await this.#call();
    return structuredClone({ weights: this.#weights, optimizer: this.#optimizer });
  }

  close(): void {
    if (!this.#closed) this.#engine.open--;
    this.#closed = true;
  }

  async #call(): Promise<void> {
    if (this.#closed) throw new Error('The session is closed.');
    await this.#engine.call();
    if (this.#closed) throw new Error('The session was closed.');
  }

  #zeros(): { a: Float64Array; b: Float64Array }[] {
    return this.#weights.factors.map(({ a, b }) => ({ a: new Float64Array(a.length), b: new Float64Array(b.length) }));
  }

  #fresh(): OptimizerState {
    const pair = (values: Float32Array) => ({ m: new Float32Array(values.length), v: new Float32Array(values.length) });
    return { steps: 0, moments: this.#weights.factors.map(({ a, b }) => ({ a: pair(a), b: pair(b) })) };
  }
}

/** A fixed base plus what the factors add. */
function logits(weights: 'base' | AdapterWeights, token: number): number[] {
  return Array.from({ length: CLASSES }, (_, k) => {
    let sum = Math.sin(1 + (token % CLASSES) + 3 * k);
    for (const { a, b, rank } of weights === 'base' ? [] : weights.factors) {
      const [inputs, outputs] = [a.length / rank, b.length / rank];
      for (let r = 0; r < rank; r++) {
        const product = (a[r * inputs + (token % inputs)] ?? 0) * (b[(k % outputs) * rank + r] ?? 0);
        sum += (weights === 'base' ? 0 : weights.scale) * product;
      }
    }
    return sum;
  });
}

function logSoftmax(values: number[]): number[] {
  const top = Math.max(...values);
  const log = Math.log(values.reduce((sum, value) => sum + Math.exp(value - top), 0));
  return values.map((value) => value - top - log);
}

function adamW(
  values: Float32Array,
  gradients: ArrayLike<number>,
  { m, v }: { m: Float32Array; v: Float32Array },
  steps: number,
  clip: number,
  { learningRate, beta1, beta2, eps, weightDecay }: OptimizerStep,
): void {
  values.forEach((value, i) => {
    const g = (gradients[i] ?? 0) * clip;
    m[i] = beta1 * (m[i] ?? 0) + (1 - beta1) * g;
    v[i] = beta2 * (v[i] ?? 0) + (1 - beta2) * g * g;
    const step = (m[i] ?? 0) / (1 - beta1 ** steps) / (Math.sqrt((v[i] ?? 0) / (1 - beta2 ** steps)) + eps);
    values[i] = value * (1 - learningRate * weightDecay) - learningRate * step;
  });
}
