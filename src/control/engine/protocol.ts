/** Typed, batched messages between the API process and the engine process (child_process IPC, `advanced` serialization). */
import type { ExtensionArguments } from '../extensions/extension.ts';
import type { ExtensionSettings } from '../extensions/load.ts';
import type { StepReport } from '../scheduler/loop.ts';
import type { SpeculationOptions, SpeculationStats } from '../scheduler/speculation.ts';
import type { StepTokensCount } from '../scheduler/step-counts.ts';
import type { WeightCacheSettings } from './weight-cache.ts';
import type { TrainerAnswer, TrainerWork } from './trainer-messages.ts';
import type { AdapterRef } from './training.ts';
import type { GrammarSpec } from './native-grammar.ts';
import type { LlamaConfig } from '../llama/config.ts';
import type { BlockHandle, KvTransferRequest, TransferSettings, TransferStats } from '../transfer/transfer.ts';
import type { ComputeDType, Device, ModelSpec, SamplingSpec, TensorEntry, WeightQuantization } from './native.ts';

/** What a file of weights must still be when an engine reads it again. */
export interface FileSample {
  path: string;
  /** Of its size and of samples of all of it. */
  digest: string;
}

/** Everything the engine process needs to start; sent once, first. */
export interface EngineConfig {
  spec: ModelSpec;
  files: string[];
  /** Of files that must not have changed since; absent: they are not looked at. */
  samples?: FileSample[];
  tensors: TensorEntry[];
  dtype: ComputeDType;
  /** Absent: weights are kept as `dtype`. */
  quantize?: WeightQuantization;
  /** Absent: keys and values are kept as `dtype`. */
  kvCacheDtype?: 'int8';
  /** Where quantised weights are kept between starts; absent: nowhere. */
  weightCache?: WeightCacheSettings;
  /** Default cpu. */
  device?: Device;
  threads: number;
  maxSequences: number;
  maxBatchTokens: number;
  /** What a step that reads prompts should take at most while sequences generate; 0, the default: tokens alone bound it. */
  stepTargetMs?: number;
  maxModelLen: number;
  samplableVocab: number;
  maxLogprobs: number;
  /** Memory for KV pages, in bytes. null, on a GPU: what is left of its memory. */
  kvCacheBytes: number | null;
  enableChunkedPrefill: boolean;
  /** Sequences that begin with the same tokens share what was computed for them. Default true. */
  enablePrefixCaching?: boolean;
  /** Default 'fcfs'. */
  schedulingPolicy?: 'fcfs' | 'priority';
  /** Proposes tokens that a sequence said before; absent = never. */
  speculation?: SpeculationOptions;
  /** Modules of extensions (`engine_xargs`); absent = none. */
  extensions?: ExtensionSettings;
  /** What the tokens spell, for grammars; absent: none can be compiled. */
  vocabulary?: GrammarVocabulary;
  /** The model whose tokenizer spells what grammars force, by path; absent: it is sampled like all else. */
  spellerModel?: string;
  /** Disaggregated serving; absent = off. */
  kvTransfer?: TransferSettings;
  /** Share of the engine's time that training gets however busy serving is, 0 to 0.9. Default 0.1. */
  trainingFloor?: number;
  /** Tokens of one packed row of training. Default 32768. */
  maxTrainingRowTokens?: number;
  /** Memory for the activations and gradients of one packed row. Default 4 GiB. */
  maxTrainingRowBytes?: number;
  /** Activations of training are computed again in the backward pass instead of kept. Default false. */
  recomputeActivations?: boolean;
  /** Largest rank of an adapter. Default 128. */
  maxLoraRank?: number;
  /** Memory for adapters; what is not in use goes when others need it. Default 1 GiB. */
  maxAdapterBytes?: number;
  /** Tests only: named faults to inject (see engine/faults.ts); empty in production. */
  faults: string[];
}

/** Tokens that end a text have no bytes. */
export interface GrammarVocabulary {
  bytes: Uint8Array;
  /** Where each token's bytes begin, and where the last one's end. */
  offsets: Int32Array;
}

/** Why a grammar cannot be used: the sender's fault, but for `busy` (too many wait) and `failed`. */
export interface GrammarFailure {
  kind: 'refused' | 'malformed' | 'bound' | 'cancelled' | 'busy' | 'failed';
  message: string;
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
  /** Absent or null = the base model. Its version keys the prefix cache; where it is not loaded, the sequence waits until it is. */
  adapter?: AdapterRef | null;
  /** Sequences with different salts share nothing in the prefix cache; absent or null = none. */
  cacheSalt?: string | null;
  /** k >= 0: score every prompt token but the first, with its k best alternatives. Absent or -1 = no. */
  promptLogprobs?: number;
  /** What its outputs must be. Compiled again after a restart. */
  grammar?: GrammarSpec;
  /** Text that the grammar forces may be appended instead of sampled, where the engine does that. Absent = no. */
  jumpForward?: boolean;
  /** Prompt positions below this one have been delivered already (after an engine restart). */
  promptScored?: number;
  /** Extensions that steer it, by name, and their arguments; absent = none. */
  extensionArguments?: ExtensionArguments;
  /** Keep its prompt's blocks for a peer, or begin with a peer's; absent = neither. */
  kvTransfer?: KvTransferRequest;
}

/** Why a choice stops where grammar, controls and extensions together leave nothing to go on with. */
export const NOTHING_ALLOWED = 'no_token_allowed';

/** `complete`: its grammar lets the text only end. `none_allowed`: grammar and controls together allow no token; brings none. */
export type FinishReason = 'stop' | 'length' | 'abort' | 'error' | 'complete' | 'none_allowed';

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
  tokens: readonly number[];
  /** Parallel to tokens; empty where logprobs were not asked for. */
  logprobs: readonly number[];
  ranks: readonly number[];
  top: readonly TopLogprobs[];
  finish: FinishReason | null;
  /** Set with finish 'error': a sentence for the log and the client. */
  error?: string;
  /** The error is of what the request asked for, not of the engine. */
  requestError?: true;
  /** Nothing went wrong: the engine was ended, and is not started again. */
  unavailable?: true;
  /** Of a 'stop' without a token: what the extension that ended it says. */
  stopReason?: string;
  /** With the last output of a sequence whose prompt's blocks are held for a peer. */
  blocks?: BlockHandle;
  /** Prompt tokens found in the prefix cache when the sequence first began to run; the same on every output. */
  cachedTokens: number;
  /** The next piece of the scores that `promptLogprobs` asked for: in outputs of their own, without tokens, before the first token. */
  promptLogprobs?: PromptLogprobs;
}

/** Of the present engine process. */
export interface AdapterStats {
  /** Ready to be used by sequences, and their bytes. */
  resident: number;
  bytes: number;
  /** Held by native code for whatever reason: residents, those of a trainer, those that a sequence still uses. */
  native: number;
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
  stepTokens: StepTokensCount;
  /** Prompt tokens looked up in the prefix cache, and found there. */
  prefixCacheQueries: number;
  prefixCacheHits: number;
  /** Absent where no adapter can be served. */
  adapters?: AdapterStats;
  /** Absent where nothing is proposed. */
  speculation?: SpeculationStats;
  /** Absent where nothing is transferred. */
  transfers?: TransferStats;
}

export type ToEngine =
  | { type: 'start'; config: EngineConfig | LlamaConfig }
  | { type: 'submit'; requests: SequenceRequest[] }
  | { type: 'abort'; ids: number[] }
  | { type: 'reset-prefix-cache' }
  /** Answered by `compiled` with the same id. */
  | { type: 'compile'; id: number; tenant: string; grammar: GrammarSpec }
  | { type: 'cancel-compile'; id: number }
  | { type: 'load-adapter'; id: number; adapter: AdapterRef; tenant: string | null }
  | { type: 'cancel-load-adapter'; id: number }
  | { type: 'unload-adapter'; version: string }
  /** Its state comes with its first calls. */
  | { type: 'trainer-open'; session: number }
  /** Answered by `trainer` with the same call. */
  | { type: 'trainer-call'; session: number; call: number; work: TrainerWork }
  | { type: 'trainer-close'; session: number }
  /** Finish what runs, then exit 0. */
  | { type: 'drain' };

export type FromEngine =
  | { type: 'loading'; done: number; total: number }
  /** `kvPort`: where peers pull. */
  | { type: 'ready'; isa: string; weightBytes: number; pages: number; pageBytes: number; kvPort?: number }
  | { type: 'failed'; message: string }
  | { type: 'compiled'; id: number; failure: GrammarFailure | null }
  /** A line for the operator. */
  | { type: 'log'; line: string }
  /** Training goes on where no step can run: said now and then, as a call of a trainer may take long. */
  | { type: 'training' }
  /** Answers load-adapter. */
  | { type: 'adapter'; id: number; error: string | null }
  /** `refused`: the error is a RowRefusedError. */
  | { type: 'trainer'; call: number; answer: TrainerAnswer; error: string | null; refused: boolean }
  | StepMessage;

/**
 * After every step and when the queue changes. The step's results travel as native code made them, in columns: one message
 * costs the same for one sequence and for many.
 */
export interface StepMessage extends StepReport {
  type: 'step';
}
