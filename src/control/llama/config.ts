import type { FileSample } from '../engine/protocol.ts';

/** Everything the engine process needs to serve a GGUF file through llama.cpp; in place of EngineConfig. */
export interface LlamaConfig {
  engine: 'llama.cpp';
  file: string;
  /** As in EngineConfig. */
  samples?: FileSample[];
  /** The file's `general.architecture`. */
  architecture: string;
  vocabSize: number;
  samplableVocab: number;
  threads: number;
  maxSequences: number;
  maxBatchTokens: number;
  /** As in EngineConfig. */
  stepTargetMs?: number;
  /** Each sequence has a part of the KV cache of its own, of this many positions. */
  maxModelLen: number;
  /** Most bytes that the keys and values of one position take. */
  positionBytes: number;
  weightBytes: number;
  enableChunkedPrefill: boolean;
  schedulingPolicy: 'fcfs' | 'priority';
  /** Tests only, as in EngineConfig. */
  faults: string[];
}

/** llama.cpp's own bound. */
export const MAX_LLAMA_SEQUENCES = 256;

/** A sequence's part of the KV cache is a multiple of this many positions. */
export const LLAMA_CACHE_UNIT = 256;
