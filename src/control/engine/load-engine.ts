import { checkOptions, type SchedulerOptions } from '../scheduler/admission.ts';
import { pagesFor } from '../scheduler/pages.ts';
import { Scheduler } from '../scheduler/scheduler.ts';
import { withFaults } from './faults.ts';
import type { NativeAddon, NativeEngine, NativeModel } from './native.ts';
import type { EngineConfig } from './protocol.ts';

export interface LoadedEngine {
  isa: string;
  weightBytes: number;
  pages: number;
  pageBytes: number;
  engine: NativeEngine;
  scheduler: Scheduler;
  /** Ends the native engine, then frees the weights. */
  close(): void;
}

/** Loads the weights and makes an engine with its scheduler. Settings that cannot work are refused by flag name. */
export async function loadEngine(
  addon: NativeAddon,
  config: EngineConfig,
  onProgress: (done: number, total: number) => void,
): Promise<LoadedEngine> {
  // What can be refused without the weights is refused before the time to load them is spent.
  checkOptions(schedulerOptions(config, pagesFor(config.maxModelLen)));
  const { spec, files, tensors, dtype, threads } = config;
  const model = await addon.loadModel(spec, files, tensors, { dtype, threads, onProgress });
  try {
    return createEngine(addon, model, config);
  } catch (error) {
    model.close();
    throw error;
  }
}

function createEngine(addon: NativeAddon, model: NativeModel, config: EngineConfig): LoadedEngine {
  const pages = pageCount(config, model.pageBytes);
  const { maxSequences, maxBatchTokens, maxModelLen, samplableVocab, maxLogprobs } = config;
  const options = { maxSequences, maxBatchTokens, pages, maxModelLen, samplableVocab, maxLogprobs };
  const scheduler = new Scheduler(schedulerOptions(config, pages));
  const engine = withFaults(addon.createEngine(model, options), config.faults);
  return {
    isa: addon.info().isa,
    weightBytes: model.weightBytes,
    pages,
    pageBytes: model.pageBytes,
    engine,
    scheduler,
    close: () => {
      engine.close();
      model.close();
    },
  };
}

function schedulerOptions(config: EngineConfig, pages: number): SchedulerOptions {
  const { maxSequences, maxBatchTokens, maxModelLen, enableChunkedPrefill, maxLogprobs } = config;
  const { vocabSize } = config.spec;
  const { enablePrefixCaching = true, schedulingPolicy = 'fcfs', priorityAgeingSeconds = 10 } = config;
  const sizes = { maxSequences, maxBatchTokens, maxModelLen, pages, vocabSize, maxLogprobs };
  return { ...sizes, enableChunkedPrefill, enablePrefixCaching, schedulingPolicy, priorityAgeingSeconds };
}

/** Pages that the KV memory holds; at least one sequence of full length must fit, so that every request can end. */
function pageCount(config: EngineConfig, pageBytes: number): number {
  const pages = Math.floor(config.kvCacheBytes / pageBytes);
  const least = pagesFor(config.maxModelLen);
  if (pages >= least) return pages;
  throw new RangeError(
    `--kv-cache-memory is ${mebibytes(config.kvCacheBytes)}, but one sequence of --max-model-len ${config.maxModelLen} tokens ` +
      `needs ${mebibytes(least * pageBytes)}: raise the first or lower the second.`,
  );
}

function mebibytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}
