/**
 * Adapters and training as the API process sees them. One engine process holds the base weights; adapters and trainers live beside them.
 * Shapes: T = tokens of a row; `in` and `out` are the input and output sizes of a projection.
 */

import type { ModelSpec } from './native.ts';

/** The projections that an adapter may change. */
export const ADAPTER_MODULES = ['q', 'k', 'v', 'o', 'gate', 'up', 'down'] as const;
export type AdapterModule = (typeof ADAPTER_MODULES)[number];
const ATTENTION_MODULES: readonly AdapterModule[] = ADAPTER_MODULES.slice(0, 4);

/** Those that a layer has: where its feed-forward is a mixture of experts, the ones of attention. */
export function modulesOf({ experts }: ModelSpec, layer: number): readonly AdapterModule[] {
  return experts?.layers[layer] === 1 ? ATTENTION_MODULES : ADAPTER_MODULES;
}

/** A servable adapter: a folder with adapter_config.json and adapter_model.safetensors (PEFT), immutable under its version. */
export interface AdapterRef {
  /** Digest of the content: keys the prefix cache and the engine's adapter slots. */
  version: string;
  /** Absolute folder. */
  directory: string;
}

/** Low-rank factors of one projection of one layer: y += scale * B (A x). FP32, row-major. */
export interface AdapterFactors {
  layer: number;
  module: AdapterModule;
  rank: number;
  /** [rank][in] */
  a: Float32Array;
  /** [out][rank] */
  b: Float32Array;
}

export interface AdapterWeights {
  /** lora_alpha / rank, or lora_alpha / sqrt(rank) with rslora. */
  scale: number;
  factors: AdapterFactors[];
}

/** First and second moment of AdamW, one pair per factor in the order of AdapterWeights.factors, and the steps taken. */
export interface OptimizerState {
  steps: number;
  moments: { a: { m: Float32Array; v: Float32Array }; b: { m: Float32Array; v: Float32Array } }[];
}

/** Everything that a job needs to go on bit for bit: FP32 master factors and the optimizer's state (null: fresh). */
export interface TrainerState {
  weights: AdapterWeights;
  optimizer: OptimizerState | null;
}

/**
 * Token rows of one packed sequence. A segment sees its own tokens up to each position and all of its parent (a shared prefix);
 * a parent comes before its children and has no parent itself.
 */
export interface TrainRow {
  /** T ids. */
  tokens: Int32Array;
  /** Quadruples (first index in tokens, count, parent segment or -1, position of the first token in its original sequence). */
  segments: Int32Array;
  /** T entries: the id whose log-probability is predicted at this index, or -1. */
  targets: Int32Array;
}

export interface RowScores {
  /** T entries; 0 where targets is -1. Raw log-probabilities (natural log, temperature 1), the very numbers that serving gives. */
  logprobs: Float32Array;
  /** T entries; full-vocabulary entropy in nats, 0 where targets is -1. */
  entropies: Float32Array;
}

export interface OptimizerStep {
  learningRate: number;
  beta1: number;
  beta2: number;
  eps: number;
  weightDecay: number;
  /** Global norm to clip to. */
  maxGradNorm: number;
}

export interface StepOutcome {
  /** Norm over all factors before clipping; NaN where not finite. */
  gradNorm: number;
  /** False where a gradient was not finite: nothing changed. */
  applied: boolean;
}

/** What one packed row may take: `maxTokens` tokens, and `bytes` of memory for its tokens and for the pages that its segments begin. */
export interface RowRoom {
  maxTokens: number;
  bytes: number;
  tokenBytes: number;
  pageBytes: number;
}

/** One open training state in the engine process. Calls run one at a time, in slices between serving steps. */
export interface TrainerSession {
  readonly room: RowRoom;
  /**
   * Forward of a row with the rounded current factors ('current', kept for `backward`), or without an adapter or with another one
   * ('base' or the weights: scores only).
   */
  forward(row: TrainRow, weights: 'current' | 'base' | AdapterWeights): Promise<RowScores>;
  /** Adds the gradients of sum over t of gradients[t] * logprob[t] of the row last forwarded with 'current'. T entries. */
  backward(gradients: Float32Array): Promise<void>;
  /** One AdamW step over what backward accumulated; clears it. */
  optimize(step: OptimizerStep): Promise<StepOutcome>;
  /** A copy of the FP32 master factors and the optimizer's state. */
  state(): Promise<TrainerState>;
  close(): void;
}

/** Thrown by every pending call when the engine process dies: the job goes on from its last snapshot. */
export class TrainerLostError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'TrainerLostError';
  }
}

/** Thrown by forward where the row is larger than the server's settings allow. Nothing has changed; its message is for the client. */
export class RowRefusedError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'RowRefusedError';
  }
}

export interface TrainingEngine {
  /** Resolves when the engine can take the state; rejects with a plain sentence where the factors do not fit the model. */
  openTrainer(state: TrainerState): Promise<TrainerSession>;
  /**
   * Makes a version servable: sequences admitted after the next step boundary may name it. Idempotent. Where memory is full of adapters in
   * use it waits; an abort of the signal ends that, and rejects. `tenant`: whose turn among those that wait it takes; null: the server's own.
   */
  loadAdapter(adapter: AdapterRef, signal?: AbortSignal, tenant?: string | null): Promise<void>;
  /** Running sequences keep it until they end. Idempotent. */
  unloadAdapter(version: string): Promise<void>;
}
