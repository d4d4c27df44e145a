/**
 * What is used of node-llama-cpp: its native layer, without its scheduling, since batches are ours. The package is installed by an own step
 * into a folder of its own; this is the only file that loads it.
 */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

export interface LlamaModel {
  /** False: the file could not be loaded. */
  init(): Promise<boolean>;
  /** Bytes of the tensors. */
  getTotalSize(): number;
}

export interface SamplerConfig {
  /** 0: the likeliest token, and no filter counts. */
  temperature: number;
  /** Whole, below 2^32. */
  seed: number;
  topK?: number;
  /** Of the likeliest token's probability before the temperature. */
  minP?: number;
  tokenBiasKeys?: Uint32Array;
  tokenBiasValues?: Float32Array;
  /** What penalties count, and how much of its end. */
  repeatPenaltyTokens?: Uint32Array;
  repeatPenaltyMaxTokens?: number;
  repeatPenalty?: number;
  repeatPenaltyPresencePenalty?: number;
  repeatPenaltyFrequencyPenalty?: number;
}

export interface LlamaSampler {
  /** Whole: what is not named is off. */
  applyConfig(config: SamplerConfig): void;
  dispose(): void;
}

/** The drawn token (-1: none could be); pairs of id and probability among the kept ones, descending; the token's probability among them. */
export type DetailedSample = [token: number, pairs: number[] | undefined, probability: number | undefined];

export interface LlamaContext {
  /** False: there was no memory for it. */
  init(): Promise<boolean>;
  initBatch(size: number): void;
  /** `logits`: positions within `tokens` to be sampled after, ascending. Returns their places in the batch. */
  addToBatch(sequence: number, position: number, tokens: Uint32Array, logits: Uint32Array): Uint32Array;
  decodeBatch(): Promise<void>;
  sampleToken(place: number, sampler: LlamaSampler): Promise<number>;
  sampleToken(
    place: number,
    sampler: LlamaSampler,
    probabilities: boolean,
    confidence: boolean,
  ): Promise<DetailedSample>;
  /** Forgets a sequence's tokens. */
  disposeSequence(sequence: number): void;
}

export interface LlamaBinding {
  AddonModel: new (
    path: string,
    options: { addonExports: LlamaBinding; gpuLayers: number; onLoadProgress: (share: number) => void },
  ) => LlamaModel;
  AddonContext: new (
    model: LlamaModel,
    options: { contextSize: number; batchSize: number; sequences: number; threads: number; flashAttention: 'auto' },
  ) => LlamaContext;
  AddonSampler: new (model: LlamaModel) => LlamaSampler;
  getIsArchSupported(architecture: string): boolean;
}

export interface LlamaLibrary {
  binding: LlamaBinding;
  /** Of llama.cpp. */
  version: string;
}

/** `complain` takes llama.cpp's own errors. */
export type OpenLlama = (threads: number, complain: (line: string) => void) => Promise<LlamaLibrary>;

const ROOT = new URL('../../../', import.meta.url);
const PACKAGE = new URL('llama-cpp/node_modules/node-llama-cpp/', ROOT);

/** Where Tandem is a package of another project, npm would look for the script there. */
export const INSTALL_COMMAND = ROOT.pathname.includes('/node_modules/')
  ? `node '${fileURLToPath(new URL('scripts/setup-llama-cpp.mjs', ROOT))}'`
  : 'npm run setup:llama-cpp';

interface Package {
  getLlama(options: object): Promise<{ _bindings: LlamaBinding; llamaCppRelease: { release: string } }>;
}

export function llamaIsInstalled(): boolean {
  return existsSync(new URL('package.json', PACKAGE));
}

/** When one is collected it takes the library down. */
const held: unknown[] = [];

export const openLlama: OpenLlama = async (threads, complain) => {
  if (!llamaIsInstalled()) throw new Error(`node-llama-cpp is not installed: run \`${INSTALL_COMMAND}\`.`);
  const { getLlama } = (await import(new URL('dist/index.js', PACKAGE).href)) as Package;
  const llama = await getLlama({
    gpu: false,
    // Only what was installed: nothing is fetched or compiled when a server starts.
    build: 'never',
    skipDownload: true,
    progressLogs: false,
    logLevel: 'error',
    logger: (_level: string, message: string) => complain(message.trim()),
    maxThreads: threads,
  });
  held.push(llama);
  return { binding: llama._bindings, version: llama.llamaCppRelease.release };
};
