/** Settings and a GGUF file to what the engine process needs for llama.cpp. What llama.cpp lacks is refused by flag name. */
import { LLAMA_CACHE_UNIT, MAX_LLAMA_SEQUENCES, type LlamaConfig } from '../control/llama/config.ts';
import type { ForeignModel } from '../control/models/model.ts';
import type { Settings } from '../control/settings.ts';
import { defaultKvMemory, modelLength } from './engine-config.ts';

/** Where no length is asked for, rather fewer sequences than shorter ones. */
const LEAST_LENGTH = 4096;

/** The flag, what it would need, and whether it is asked for. */
const UNSUPPORTED: readonly [flag: string, what: string, asked: (settings: Settings) => boolean][] = [
  ['device', 'computes on the CPU here', ({ device }) => device === 'cuda'],
  ['dtype', 'computes in the types of the file', ({ dtype }) => dtype !== 'auto'],
  ['quantize', 'takes the weights as they are', ({ quantize }) => quantize !== 'none'],
  ['kv-cache-dtype', 'keeps keys and values as 16-bit floats', ({ kvCacheDtype }) => kvCacheDtype !== 'auto'],
  ['speculative-config', 'proposes no tokens', ({ speculativeConfig }) => speculativeConfig !== null],
  ['lora-modules', 'serves no adapters', ({ loraModules }) => loraModules.length > 0],
  ['allow-runtime-lora-updating', 'serves no adapters', (settings) => settings.allowRuntimeLoraUpdating],
  ['engine-extension', 'runs no extensions', ({ engineExtensions }) => engineExtensions.length > 0],
  ['kv-port', 'transfers no KV blocks', ({ kvPort }) => kvPort !== null],
  ['kv-peers', 'transfers no KV blocks', ({ kvPeers }) => kvPeers.length > 0],
];

export function refuseLlamaSettings(settings: Settings): void {
  for (const [flag, what, asked] of UNSUPPORTED)
    if (asked(settings)) throw new Error(`--${flag} is not supported with llama.cpp, which ${what}.`);
  if (settings.maxNumSeqs > MAX_LLAMA_SEQUENCES)
    throw new Error(
      `--max-num-seqs ${settings.maxNumSeqs}: llama.cpp runs at most ${MAX_LLAMA_SEQUENCES} sequences at once.`,
    );
}

/** `warn` hears of what is less than was asked for or than the model could do. */
export function llamaConfig(settings: Settings, model: ForeignModel, warn: (text: string) => void): LlamaConfig {
  const { maxSequences, maxModelLen } = shareCache(settings, model, warn);
  return {
    engine: 'llama.cpp',
    file: model.path,
    samples: model.samples,
    architecture: model.architecture,
    vocabSize: model.vocabSize,
    samplableVocab: Math.min(model.tokenizerSize, model.vocabSize),
    threads: settings.threads,
    maxSequences,
    maxBatchTokens: settings.maxNumBatchedTokens,
    stepTargetMs: settings.stepTargetMs,
    maxModelLen,
    positionBytes: model.positionBytes,
    weightBytes: model.weightBytes,
    enableChunkedPrefill: settings.enableChunkedPrefill,
    schedulingPolicy: settings.schedulingPolicy,
    faults: settings.faults,
  };
}

/**
 * llama.cpp gives each sequence its own part of the cache from the start. A length that was asked for is kept, and as many sequences run
 * as the memory has room for.
 */
function shareCache(
  settings: Settings,
  model: ForeignModel,
  warn: (text: string) => void,
): Pick<LlamaConfig, 'maxSequences' | 'maxModelLen'> {
  const units = cacheUnits(settings, model);
  const asked = settings.maxModelLen === null ? null : modelLength(settings.maxModelLen, model.maxPosition);
  const maxModelLen = asked ?? defaultLength(units, settings.maxNumSeqs, model.maxPosition);
  const maxSequences = Math.min(settings.maxNumSeqs, Math.floor(units / Math.ceil(maxModelLen / LLAMA_CACHE_UNIT)));
  if (maxSequences < 1) {
    throw new Error(
      `--kv-cache-memory holds ${units * LLAMA_CACHE_UNIT} positions of this model, which is less than one sequence of ` +
        `--max-model-len ${maxModelLen}: raise the first or lower the second.`,
    );
  }
  if (asked === null && maxModelLen < model.maxPosition)
    warn(
      `The model allows ${model.maxPosition} positions; the longest sequence has ${maxModelLen} here (--max-model-len).`,
    );
  if (maxSequences < settings.maxNumSeqs)
    warn(
      `The KV cache has room for ${maxSequences} sequences of ${maxModelLen} positions: so many run at once. ` +
        'Raise --kv-cache-memory or lower --max-model-len for more.',
    );
  return { maxSequences, maxModelLen };
}

function cacheUnits(settings: Settings, { positionBytes, maxPosition }: ForeignModel): number {
  const most = settings.maxNumSeqs * Math.ceil(maxPosition / LLAMA_CACHE_UNIT);
  // A model without attention keeps nothing per position.
  if (positionBytes === 0) return most;
  const bytes = settings.kvCacheMemoryBytes ?? defaultKvMemory();
  return Math.min(most, Math.floor(bytes / (positionBytes * LLAMA_CACHE_UNIT)));
}

function defaultLength(units: number, sequences: number, most: number): number {
  const even = Math.floor(units / sequences) * LLAMA_CACHE_UNIT;
  const length = Math.min(Math.max(even, LEAST_LENGTH), units * LLAMA_CACHE_UNIT);
  return Math.min(most, Math.max(length, LLAMA_CACHE_UNIT));
}
