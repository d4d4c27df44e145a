/** Typed, batched messages between the API process and the engine process (child_process IPC, `advanced` serialization). */
import type { ComputeDType, ModelSpec, SamplingSpec, StepResult, TensorEntry } from './native.ts';

/** Everything the engine process needs to start; sent once, first. */
export interface EngineConfig {
  spec: ModelSpec;
  files: string[];
  tensors: TensorEntry[];
  dtype: ComputeDType;
  threads: number;
  maxSequences: number;
  maxBatchTokens: number;
  maxModelLen: number;
  samplableVocab: number;
  maxLogprobs: number;
  /** Memory for KV pages, in bytes. */
  kvCacheBytes: number;
  enableChunkedPrefill: boolean;
  /** Tests only: named faults to inject (see engine/faults.ts); empty in production. */
  faults: string[];
}

/** One sequence (one choice of one request). Ids are unique in the API process for its life. */
export interface SequenceRequest {
  id: number;
  promptIds: Int32Array;
  /** Tokens already generated (after an engine restart); they are fed again and counted as output. */
  resumeIds: Int32Array;
  sampling: SamplingSpec;
  /** Lower runs earlier; used only with priority scheduling. */
  priority: number;
  /** Owner, for fairness and cache isolation. */
  tenant: string;
}

export type FinishReason = 'stop' | 'length' | 'abort' | 'error';

export interface TopLogprobs {
  ids: Int32Array;
  logprobs: Float32Array;
}

/** What one step brought one sequence. */
export interface SequenceOutput {
  id: number;
  tokens: Int32Array;
  /** Parallel to tokens; empty where logprobs were not asked for. */
  logprobs: Float32Array;
  ranks: Int32Array;
  top: TopLogprobs[];
  finish: FinishReason | null;
  /** Set with finish 'error': a sentence for the log and the client. */
  error?: string;
  /** Prompt tokens found in the prefix cache, on the first output. */
  cachedTokens: number;
}

export interface EngineStats {
  running: number;
  waiting: number;
  pagesTotal: number;
  pagesUsed: number;
  preemptions: number;
  steps: number;
  promptTokens: number;
  generatedTokens: number;
  /** Sum of microseconds inside native steps. */
  stepMicros: number;
}

export type ToEngine =
  | { type: 'start'; config: EngineConfig }
  | { type: 'submit'; requests: SequenceRequest[] }
  | { type: 'abort'; ids: number[] }
  /** Finish what runs, then exit 0. */
  | { type: 'drain' };

export type FromEngine =
  | { type: 'loading'; done: number; total: number }
  | { type: 'ready'; isa: string; weightBytes: number; pages: number; pageBytes: number }
  | { type: 'failed'; message: string }
  | StepMessage;

/**
 * After every step and when the queue changes. The step's results travel as native code made them, in columns: one message
 * costs the same for one sequence and for many.
 */
export interface StepMessage {
  type: 'step';
  /** Ids that have run for the first time. */
  started: number[];
  /** The id of each result's sequence, -1 for one that was aborted meanwhile; null with `result` when no step has ended. */
  ids: Float64Array | null;
  result: StepResult | null;
  /** Requests that can never run, and why. */
  refused: { id: number; message: string }[];
  stats: EngineStats;
}
