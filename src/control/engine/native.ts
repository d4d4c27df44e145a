/**
 * The native addon's surface. This is the only file that loads the .node file.
 *
 * Every call re-checks its arguments in C++ and throws (`TypeError` for a wrong type, `RangeError` for a value out of range,
 * `Error` otherwise); nothing that JavaScript passes can abort the process.
 */
import { createRequire } from 'node:module';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { setupCommand } from '../setup-command.ts';
import type { NativeGrammarAddon, NativeConstraint } from './native-grammar.ts';
import type { NativeTrainAddon } from './native-train.ts';
import type { AdapterFactors, AdapterModule } from './training.ts';

export type WeightDType = 'F32' | 'F16' | 'BF16';
/** Blocks of small numbers with their scales, as GGUF files store them; only matrices. */
export type BlockDType = 'Q8_0' | 'Q4_0' | 'Q4_K' | 'Q6_K';
export type ComputeDType = 'float32' | 'bfloat16';
/** Whole numbers of 8 or 4 bits with a scale per 32 of them; FP8 (E4M3) with a scale per output, on a GPU only. */
export type WeightQuantization = 'int8' | 'int4' | 'fp8';

/** The model as facts; native code reads no JSON. All counts are checked again there. */
export interface ModelSpec {
  architecture: 'llama' | 'mistral' | 'mixtral' | 'qwen2' | 'qwen3' | 'qwen3_moe';
  vocabSize: number;
  hiddenSize: number;
  intermediateSize: number;
  layers: number;
  heads: number;
  kvHeads: number;
  headDim: number;
  rmsNormEps: number;
  ropeTheta: number;
  /**
   * `linear`: positions divided by factor; `llama3`: the frequency-dependent rule of Llama 3.1; `factors`: frequency i divided by factors[i].
   * `yarn`: frequencies with at least betaFast turns in originalMaxPosition stay, those with at most betaSlow are divided, between them is a
   * ramp (from and to whole pairs where `truncate`); queries and keys are multiplied by attentionFactor.
   */
  ropeScaling:
    | { type: 'none' }
    | { type: 'linear'; factor: number }
    | { type: 'factors'; factors: Float32Array }
    | { type: 'llama3'; factor: number; lowFreqFactor: number; highFreqFactor: number; originalMaxPosition: number }
    | YarnScaling;
  maxPosition: number;
  /** Keys further back than this many positions are not seen (a query sees itself and window-1 before it); 0 = no window. */
  slidingWindow: number;
  /** One byte per layer: 1 where the window applies. */
  windowLayers: Uint8Array;
  /** q, k and v projections have a bias (`attention_bias` of Llama also sets outputBias). */
  qkvBias: boolean;
  outputBias: boolean;
  mlpBias: boolean;
  /** RMS norm over head_dim on q and k before the rotation. */
  qkNorm: boolean;
  /** lm_head is the embedding matrix. */
  tiedEmbeddings: boolean;
  experts?: Experts;
}

/** Feed-forwards that are mixtures: each token goes to `used` of `count` experts, each of `size` intermediate numbers. */
export interface Experts {
  count: number;
  used: number;
  size: number;
  /** The weights of those that are used sum to 1. */
  normalise: boolean;
  /** One byte per layer: 1 where the feed-forward is a mixture. */
  layers: Uint8Array;
}

export interface YarnScaling {
  type: 'yarn';
  factor: number;
  betaFast: number;
  betaSlow: number;
  truncate: boolean;
  attentionFactor: number;
  originalMaxPosition: number;
}

/** One tensor: Hugging Face name, row-major shape, and where its bytes lie. */
export interface TensorEntry {
  name: string;
  dtype: WeightDType | BlockDType;
  shape: number[];
  /** Index into the file list. */
  file: number;
  /** Absolute byte offset in that file. */
  offset: number;
  /** Size of a head whose rows lie in pairs (i, i + half) instead of half below half; absent = in order. */
  interleaved?: number;
}

/** Where the weights, the KV pages and the arithmetic are. */
export type Device = 'cpu' | 'cuda';

export interface LoadOptions {
  /** Of activations, of keys and values, and of weights, unless what follows says otherwise. bfloat16 on cuda. */
  dtype: ComputeDType;
  /** Absent: weights are kept as `dtype`. */
  quantize?: WeightQuantization;
  /** With `quantize`: a file that holds the quantised weights, used where its key and contents are right, else written anew. */
  cache?: { path: string; key: string };
  /** Engines keep keys and values as whole numbers of 8 bits with a scale per position and head. Not on cuda. */
  kvCacheDtype?: 'int8';
  /** Default cpu. Rejects for cuda, saying why, where the build or the machine has none. */
  device?: Device;
  /** Worker threads, 1..256. */
  threads: number;
  /** Called on the JS thread with packed and total bytes, a few times a second at most. */
  onProgress?: (done: number, total: number) => void;
}

export interface EngineOptions {
  /** Sequence slots, 1..4096. */
  maxSequences: number;
  /** Tokens in one step, all sequences together, 1..65536. */
  maxBatchTokens: number;
  /** Pages of the KV pool; a page holds `pageSize` positions of every layer. */
  pages: number;
  /** Longest sequence in tokens, prompt and output. */
  maxModelLen: number;
  /** Ids >= this are never sampled (the tokenizer's size); <= vocabSize. */
  samplableVocab: number;
  /** Most top_logprobs that a sequence may ask for. */
  maxLogprobs: number;
  /** Bytes of a GPU's memory to leave for adapters. Default 0; means nothing on the CPU. */
  reserveBytes?: number;
}

/** Positions per KV page. */
export const PAGE_SIZE = 16;

/** Sampling of one sequence. Ranges are those of the API after its own validation; native code checks them again. */
export interface SamplingSpec {
  /** 0 = greedy. */
  temperature: number;
  /** (0, 1]; 1 = off. */
  topP: number;
  /** 0 = off. */
  topK: number;
  /** [0, 1]; 0 = off. */
  minP: number;
  /** 64-bit seed, signed or unsigned (only its bits count); with `choice` and the output index it names one uniform draw. */
  seed: bigint;
  /** Index of this choice within its request (0..n-1). */
  choice: number;
  /** Most output tokens, >= 1; the sequence finishes with `length` when it has them. */
  maxTokens: number;
  /** Ids of `stopIds` cannot be sampled before this many output tokens. */
  minTokens: number;
  /** End-of-sequence and stop token ids (already without EOS when ignore_eos); at most 1024. */
  stopIds: Int32Array;
  /** Ids that end nothing and cannot be sampled before `minTokens` either (EOS with ignore_eos); at most 1024. */
  barredIds?: Int32Array;
  /** -1: no logprobs wanted; k >= 0: the sampled token's and the k best. */
  logprobs: number;
  /** What the log-probabilities are of: the untouched logits (default), these over the temperature, or what the draw was made from. */
  logprobsMode?: 'raw' | 'temperature' | 'processed';
  /** [-2, 2], over the output. */
  frequencyPenalty?: number;
  presencePenalty?: number;
  /** > 0, over prompt and output; 1 = off. */
  repetitionPenalty?: number;
  /** Distinct ids and what is added to their logits, within [-100, 100]. */
  biasIds?: Int32Array;
  biasValues?: Float32Array;
  /** Ascending; only these may be sampled. */
  allowedIds?: Int32Array;
  /** Token sequences whose last id is banned where the others precede it. */
  badWords?: Int32Array[];
}

export interface SequenceOpen {
  slot: number;
  /** Tokens of the prompt; tokens at later positions are outputs (also when they are fed again after a preemption). */
  promptLength: number;
  sampling: SamplingSpec;
  /** Tokens whose keys and values already lie in the pages assigned in this plan (prefix cache); the first row goes on after them. */
  cached?: Int32Array;
  /** k >= 0: also score every prompt token but the first, with its k best alternatives. Needs `cached` to be absent or empty. */
  promptLogprobs?: number;
  /** Of the engine's model; absent = the base model. The slot keeps it until it is closed, whatever becomes of the handle. */
  adapter?: NativeAdapter;
  /** What the outputs must be; its vocabulary has at least `samplableVocab` tokens. Outputs that are fed again it has taken before. */
  constraint?: NativeConstraint;
}

/** Controls of one sampling row in this step alone, beside those of its sequence (both kinds of allowed ids hold). */
export interface StepControl {
  slot: number;
  /** Distinct ids and what is added to their logits, within [-100, 100]. */
  biasIds?: Int32Array;
  biasValues?: Float32Array;
  /** Ascending; only these may be sampled now. */
  allowedIds?: Int32Array;
}

/** One step's whole instruction. Buffers may be reused after the promise settles; native code copies on the JS thread. */
export interface StepPlan {
  /** Slots that begin (must be free or in `closes`). */
  opens: SequenceOpen[];
  /** Slots that end before this step runs. */
  closes: Int32Array;
  /** Triples (slot, page index within the sequence, page id in 0..pages-1). */
  pages: Int32Array;
  /**
   * Quadruples (slot, first position, token count, samples). Positions must continue where the slot stands. At most one row per slot.
   * The row's last `samples` positions are sampled in order. The tokens after the first of them are proposals: sampling goes on while it
   * gives just those and the sequence has not finished, and the slot then stands after the last position that was sampled.
   */
  rows: Int32Array;
  /** The rows' token ids, in order. -1 (only as the first of a row) = the token this slot sampled last. */
  tokens: Int32Array;
  /** At most one per row that samples once. */
  controls?: StepControl[];
  /**
   * Per row how many of its last tokens are outputs that the grammar forced: they are scored as they are fed. Absent = none. The position
   * before the first of them must be fed in this row, or have been the slot's last one.
   */
  scored?: Int32Array;
  /** Made before the results of the step before were known: rows of slots whose sequence that step ended are left out, without a result. */
  ahead?: boolean;
}

/** Why a sequence finished, as the addon numbers it. */
export const FINISH = {
  /** It goes on. */
  none: 0,
  stopToken: 1,
  length: 2,
  /** Without a token: its logits were not finite. */
  notFinite: 3,
  /** The token is the last of a text that its grammar lets only end. */
  complete: 4,
  /** Without a token: grammar and controls together allow none. */
  noToken: 5,
  /** Without a token: the grammar's matcher could not go on. */
  grammarFailed: 6,
} as const;
export type FinishCode = (typeof FINISH)[keyof typeof FINISH];

/** 1..samples entries per sampling row, in row order. */
export interface StepResult {
  slots: Int32Array;
  tokens: Int32Array;
  /** Of FINISH. */
  finish: Uint8Array;
  /** 1: the grammar forces what comes next, and its constraint jumps. */
  forced: Uint8Array;
  /** Raw log-probability (natural log, before any change to the logits) of the sampled token; NaN where not asked for. */
  logprobs: Float32Array;
  /** 1 + number of larger logits; 0 where not asked for. */
  ranks: Int32Array;
  /** Pairs of (offset, count) into topIds / topLogprobs; descending, ties by smaller id. */
  topRanges: Int32Array;
  topIds: Int32Array;
  topLogprobs: Float32Array;
  /**
   * Scored tokens of prompts (raw) and forced outputs (in the sequence's mode), one entry each: slot, position of the
   * token, raw log-probability (NaN: not finite), rank, (offset, count) into top*.
   */
  promptSlots: Int32Array;
  promptPositions: Int32Array;
  promptLogprobs: Float32Array;
  promptRanks: Int32Array;
  promptTopRanges: Int32Array;
  /** Microseconds inside native code. */
  micros: number;
}

/** A GPU that holds a model, and its memory. */
export interface NativeGpu {
  /** What rounds as others need not, which is part of the fingerprint: 'cuda 9.0, wgmma products, mma attention'. */
  readonly kernels: string;
  /** Pages for which there is room beside all else that an engine with these options (whatever their `pages`) needs. */
  mostPages(options: EngineOptions): number;
  memoryPlan(options: EngineOptions): { name: string; bytes: number }[];
}

export interface NativeModel {
  readonly weightBytes: number;
  /** 'unused', 'read', 'written', or why the cache could not be written. */
  readonly weightCache: string;
  /** Bytes of one KV page. */
  readonly pageBytes: number;
  /** null: the weights are in the CPU's memory. */
  readonly gpu: NativeGpu | null;
  close(): void;
}

/** Low-rank factors of one projection of one layer, by the names of two tensors: [rank, in] and [out, rank]. */
export interface StoredFactors {
  layer: number;
  module: AdapterModule;
  rank: number;
  /** y += scale * B (A x). */
  scale: number;
  a: string;
  b: string;
}

/**
 * Factors in files, as a table of numbers (adapter-table.ts), or in memory (FP32, row-major). They are rounded once to the model's compute
 * type.
 */
export type AdapterSource =
  { files: string[]; table: Float64Array } | { factors: (AdapterFactors & { scale: number })[] };

/** Immutable; only for engines of the model that it was loaded with. */
export interface NativeAdapter {
  readonly bytes: number;
  /** Sequences that use it keep it. Idempotent. */
  close(): void;
}

export interface NativeEngine {
  /** Runs one step off the JS thread. One more may be given meanwhile, which runs behind that one; a third call rejects. */
  step(plan: StepPlan): Promise<StepResult>;
  /**
   * Takes back the step that waits for another one: its promise rejects. False: none waits, or it has begun; on a GPU it has when it is queued
   * behind the running one. Absent: one step at a time.
   */
  retract?(): boolean;
  /** Stored keys and values, `pageBytes` per page in order; waits for a running step. */
  readPages(pages: Int32Array): Promise<Uint8Array>;
  /** Takes what readPages of an engine with the same weights and dtype gave. The length and every number are checked. */
  writePages(pages: Int32Array, bytes: Uint8Array): Promise<void>;
  /** Idempotent; waits for a running step. */
  close(): void;
}

export interface NativeInfo {
  version: string;
  /** The instruction set in use and all that this CPU and build support, best first. TANDEM_ISA forces one. */
  isa: string;
  isas: string[];
  /** GPUs that can be used; the name of the first, or why there is none. */
  cuda: { built: boolean; devices: number; message: string };
}

export interface NativeAddon extends NativeGrammarAddon, NativeTrainAddon {
  info(): NativeInfo;
  loadModel(spec: ModelSpec, files: string[], tensors: TensorEntry[], options: LoadOptions): Promise<NativeModel>;
  /** Reads and packs off the JS thread. Rejects naming the layer and projection whose sizes or numbers do not fit. */
  loadAdapter(model: NativeModel, source: AdapterSource): Promise<NativeAdapter>;
  /** Adapters in this process's memory: those that are open, and those that were closed while sequences use them. */
  liveAdapters(): number;
  createEngine(model: NativeModel, options: EngineOptions): NativeEngine;
}

const ADDON = fileURLToPath(new URL('../../../native-build/Release/tandem.node', import.meta.url));

let loaded: NativeAddon | undefined;

/** Loads the addon once. Throws a plain sentence when it was never built. */
export function loadNative(): NativeAddon {
  if (loaded) return loaded;
  if (!existsSync(ADDON)) throw new Error(`The native addon is not built: run ${setupCommand()}.`);
  loaded = createRequire(import.meta.url)(ADDON) as NativeAddon;
  return loaded;
}
