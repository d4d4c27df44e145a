/** A model on disk, read and checked: what the engine and the sessions need of it. */
import type { ModelSpec, TensorEntry } from '../engine/native.ts';
import type { FileSample } from '../engine/protocol.ts';
import type { TokenizerFiles } from './tokenizer-files.ts';

/** generation_config.json, reduced to what serving uses; undefined = not given. */
export interface GenerationDefaults {
  temperature?: number;
  topP?: number;
  topK?: number;
  minP?: number;
  repetitionPenalty?: number;
  maxNewTokens?: number;
  /** Always merged into the stop ids unless ignore_eos. */
  eosTokenIds: number[];
}

export interface LoadedModel {
  /** Absolute: a directory or a GGUF file. */
  path: string;
  /** What it is called where nobody gives it a name. */
  name: string;
  spec: ModelSpec;
  files: string[];
  /** Of `files`, as they were when this was read. */
  samples: FileSample[];
  tensors: TensorEntry[];
  /** Dtype of the checkpoint ('auto' chooses by it); weights stored as small numbers count as bfloat16. */
  checkpointDType: 'float32' | 'float16' | 'bfloat16';
  texts: ModelTexts;
  generation: GenerationDefaults;
  /** Tokens the tokenizer knows: ids in [0, tokenizerSize) are samplable. */
  tokenizerSize: number;
  /** Largest context the config allows. */
  maxPosition: number;
  /** SHA-256 over config, tokenizer and weight headers + sampled weight bytes: registered models fit no other. Part of system_fingerprint. */
  digest: string;
  /** Recommendations of the model's files that are not followed; the operator should see them at start-up. */
  warnings: string[];
}

/** A GGUF file that an engine with a reader of its own runs. */
export interface ForeignModel {
  path: string;
  name: string;
  /** `general.architecture`. */
  architecture: string;
  /** Rows of the embedding. */
  vocabSize: number;
  texts: ModelTexts;
  tokenizerSize: number;
  maxPosition: number;
  /** Most bytes that the keys and values of one position take. */
  positionBytes: number;
  parameters: number;
  weightBytes: number;
  /** The type that most of the weights are stored in. */
  storage: string;
  digest: string;
  samples: FileSample[];
}

/** What is known of a model without its weights. */
export interface ModelTexts {
  /** Rows of the embedding. */
  vocabSize: number;
  generation: GenerationDefaults;
  tokenizer: TokenizerFiles;
}
