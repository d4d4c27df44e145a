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
  /** Sequences that begin with the same tokens share what was computed for them. Default true. */
  enablePrefixCaching?: boolean;
  /** Default 'fcfs'. */
  schedulingPolicy?: 'fcfs' | 'priority';
  /** Under 'priority' a waiting sequence gains one unit of priority in so many seconds. Default 10. */
  priorityAgeingSeconds?: number;
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
  /** Version of the content of its adapter, never a name alone; absent or '' = the base model. Keys the prefix cache. */
  adapterVersion?: string;
  /** Sequences with different salts share nothing in the prefix cache; absent or null = none. */
  cacheSalt?: string | null;
  /** k >= 0: score every prompt token but the first, with its k best alternatives. Absent or -1 = no. */
  promptLogprobs?: number;
  /** Prompt positions below this one have been delivered already (after an engine restart). */
  promptScored?: number;
}

export type FinishReason = 'stop' | 'length' | 'abort' | 'error';

export interface TopLogprobs {
  ids: Int32Array;
  logprobs: Float32Array;
}

/** Scores of consecutive prompt tokens. The first token has none. */
export interface PromptLogprobs {
  /** Position of the first of them: 1, or where the piece before ended. */
  start: number;
  /** Of the token itself, raw; NaN where the logits were not finite. */
  logprobs: Float32Array;
  ranks: Int32Array;
  /** As many as were asked for; empty lists with 0. */
  top: TopLogprobs[];
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
  /** Prompt tokens found in the prefix cache when the sequence first began to run; the same on every output. */
  cachedTokens: number;
  /** The next piece of the scores that `promptLogprobs` asked for: in outputs of their own, without tokens, before the first token. */
  promptLogprobs?: PromptLogprobs;
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
  /** Prompt tokens looked up in the prefix cache, and found there. */
  prefixCacheQueries: number;
  prefixCacheHits: number;
}

export type ToEngine =
  | { type: 'start'; config: EngineConfig }
  | { type: 'submit'; requests: SequenceRequest[] }
  | { type: 'abort'; ids: number[] }
  | { type: 'reset-prefix-cache' }
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
  /** Parallel to `started`: prompt tokens found in the prefix cache. */
  cached: number[];
  /** The id of each result's sequence, -1 for one that was aborted meanwhile; null with `result` when no step has ended. */
  ids: Float64Array | null;
  /** The same for each scored prompt token; -1 also for one that was delivered before. */
  promptIds: Float64Array | null;
  result: StepResult | null;
  /** Requests that can never run, and why. */
  refused: { id: number; message: string }[];
  stats: EngineStats;
}
