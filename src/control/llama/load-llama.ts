/** llama.cpp with a model, ready for the loop. */
import { setTimeout } from 'node:timers/promises';
import { PAGE_SIZE } from '../engine/native.ts';
import { withFaults } from '../engine/faults.ts';
import type { LoadedEngine } from '../engine/load-engine.ts';
import { checkOptions, type SchedulerOptions } from '../scheduler/admission.ts';
import { pagesFor } from '../scheduler/pages.ts';
import { Scheduler } from '../scheduler/scheduler.ts';
import type { LlamaBinding, LlamaContext, LlamaModel, OpenLlama } from './binding.ts';
import { LLAMA_CACHE_UNIT, type LlamaConfig } from './config.ts';
import { LLAMA_BATCH, LlamaEngine } from './engine.ts';

const MAX_COMPLAINTS = 8;
/** They come by another way than what failed because of them, and may come after it. */
const COMPLAINTS_MS = 100;

/** What is wrong with the file is said in llama.cpp's own words. */
export async function loadLlama(
  open: OpenLlama,
  config: LlamaConfig,
  onProgress: (done: number, total: number) => void,
  log: (line: string) => void,
): Promise<LoadedEngine> {
  const options = schedulerOptions(config);
  checkOptions(options);
  const complaints: string[] = [];
  const { binding, version } = await open(config.threads, (line) => {
    if (complaints.push(line) > MAX_COMPLAINTS) complaints.shift();
    log(`llama.cpp: ${line}`);
  });
  const because = async () => {
    await setTimeout(COMPLAINTS_MS);
    return complaints.length === 0 ? '.' : `: ${complaints.join(' ')}`;
  };
  if (!binding.getIsArchSupported(config.architecture))
    throw new Error(`llama.cpp ${version} does not know the architecture ${config.architecture} either.`);
  const model = loadModel(binding, config, onProgress);
  if (!(await model.init())) throw new Error(`llama.cpp cannot load the file${await because()}`);
  const context = createContext(binding, model, config);
  if (!(await context.init())) throw new Error(`llama.cpp finds no memory for its KV cache${await because()}`);
  const { vocabSize, samplableVocab, positionBytes } = config;
  const vocabulary = { size: vocabSize, samplable: samplableVocab };
  const engine = withFaults(new LlamaEngine({ binding, model, context, vocabulary }), config.faults);
  return {
    isa: `llama.cpp ${version}`,
    weightBytes: model.getTotalSize(),
    pages: options.pages,
    pageBytes: PAGE_SIZE * positionBytes,
    engine,
    scheduler: new Scheduler(options),
    grammars: null,
    transfers: null,
    adapters: null,
    trainers: null,
    close: () => engine.close(),
  };
}

function loadModel(
  binding: LlamaBinding,
  { file, weightBytes }: LlamaConfig,
  onProgress: (done: number, total: number) => void,
): LlamaModel {
  const onLoadProgress = (share: number) => onProgress(Math.round(share * weightBytes), weightBytes);
  return new binding.AddonModel(file, { addonExports: binding, gpuLayers: 0, onLoadProgress });
}

function createContext(
  binding: LlamaBinding,
  model: LlamaModel,
  { maxSequences: sequences, maxModelLen, threads }: LlamaConfig,
): LlamaContext {
  const positions = Math.ceil(maxModelLen / LLAMA_CACHE_UNIT) * LLAMA_CACHE_UNIT;
  // A layer with a window may need room for one token more.
  const batchSize = LLAMA_BATCH + 1;
  const contextSize = sequences * positions;
  return new binding.AddonContext(model, { contextSize, batchSize, sequences, threads, flashAttention: 'auto' });
}

/** Every slot has its own part of the cache, so pages never run short: they only count what is used. */
function schedulerOptions(config: LlamaConfig): SchedulerOptions {
  const { maxSequences, maxBatchTokens, maxModelLen, enableChunkedPrefill, schedulingPolicy, vocabSize } = config;
  return {
    maxSequences,
    maxBatchTokens,
    stepTargetMs: config.stepTargetMs ?? 0,
    maxModelLen,
    pages: maxSequences * pagesFor(maxModelLen),
    enableChunkedPrefill,
    vocabSize,
    // Not even the token's own.
    maxLogprobs: -1,
    enablePrefixCaching: false,
    schedulingPolicy,
  };
}
