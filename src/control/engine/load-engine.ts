import { loadExtensions } from '../extensions/load.ts';
import { mebibytes } from '../mebibytes.ts';
import { checkOptions, type SchedulerOptions } from '../scheduler/admission.ts';
import type { Speller } from '../scheduler/jumps.ts';
import { pagesFor } from '../scheduler/pages.ts';
import { Scheduler } from '../scheduler/scheduler.ts';
import { KvTransfers } from '../transfer/kv-transfers.ts';
import type { TransferSettings } from '../transfer/transfer.ts';
import { AdapterStore } from './adapter-store.ts';
import { arithmeticName } from './arithmetic.ts';
import { withFaults } from './faults.ts';
import { readSpeller } from './forced-speller.ts';
import { Grammars } from './grammars.ts';
import { PAGE_SIZE, type EngineOptions, type NativeAddon, type NativeEngine, type NativeModel } from './native.ts';
import { adapterOpener } from './open-adapter.ts';
import type { TrainerOptions } from './native-train.ts';
import { TrainerHost } from './trainer-host.ts';
import type { EngineConfig } from './protocol.ts';
import { afterLoad, cachePlace, type CachePlace } from './weight-cache.ts';

export interface LoadedEngine {
  isa: string;
  weightBytes: number;
  pages: number;
  pageBytes: number;
  engine: NativeEngine;
  scheduler: Scheduler;
  /** null: none can be compiled. */
  grammars: Grammars | null;
  /** null: nothing is transferred. */
  transfers: KvTransfers | null;
  /** null: none are served. */
  adapters: AdapterStore | null;
  /** null: nothing is trained. */
  trainers: TrainerHost | null;
  /** Ends the native engine, then frees the weights. */
  close(): void;
}

export interface LoadedNative extends LoadedEngine {
  grammars: Grammars;
  adapters: AdapterStore;
  trainers: TrainerHost;
}

export const DEFAULT_TRAINING_FLOOR = 0.1;
const DEFAULT_MAX_RANK = 128;
const DEFAULT_ROW_TOKENS = 32_768;
const DEFAULT_ROW_BYTES = 4 * 2 ** 30;
const DEFAULT_ADAPTER_BYTES = 2 ** 30;

/** Loads the weights and makes an engine with its scheduler. Settings that cannot work are refused by flag name. */
export async function loadEngine(
  addon: NativeAddon,
  config: EngineConfig,
  onProgress: (done: number, total: number) => void,
  log: (line: string) => void = console.error,
): Promise<LoadedNative> {
  // What can be refused without the weights is refused before the time to load them is spent.
  checkOptions(schedulerOptions(config, pagesFor(config.maxModelLen)));
  const adviser = config.extensions ? await loadExtensions(config.extensions, config.samplableVocab) : undefined;
  const { spec, files, tensors, dtype, quantize, kvCacheDtype, device = 'cpu', threads } = config;
  // Read while the weights are.
  const speller = spellerOf(config);
  const cache = device === 'cpu' ? await cacheOf(config, addon, log) : undefined;
  if (device !== 'cpu' && config.weightCache)
    log('Quantised weights are not kept on disk: the cache is of CPU engines.');
  const formats = { ...(quantize && { quantize }), ...(cache && { cache }), ...(kvCacheDtype && { kvCacheDtype }) };
  const model = await addon.loadModel(spec, files, tensors, { dtype, device, threads, onProgress, ...formats });
  if (cache) await afterLoad(cache, model.weightCache, log);
  try {
    const options = engineOptions(config, model);
    if (model.gpu) log(memoryText(model.gpu.memoryPlan(options)));
    const services = { ...(adviser && { adviser }), speller: await speller };
    const loaded = createEngine(addon, model, config, options, services, log);
    const transfers = config.kvTransfer ? await startTransfers(loaded, config, config.kvTransfer, log) : null;
    return { ...loaded, transfers };
  } catch (error) {
    model.close();
    throw error;
  }
}

function createEngine(
  addon: NativeAddon,
  model: NativeModel,
  config: EngineConfig,
  options: EngineOptions,
  services: Pick<SchedulerOptions, 'adviser' | 'speller'>,
  log: (line: string) => void,
): Omit<LoadedNative, 'transfers'> {
  const { pages } = options;
  const scheduler = new Scheduler({ ...schedulerOptions(config, pages), ...services });
  const engine = withFaults(addon.createEngine(model, options), config.faults);
  const { spec, dtype, maxLoraRank = DEFAULT_MAX_RANK, maxAdapterBytes = DEFAULT_ADAPTER_BYTES } = config;
  const adapters = new AdapterStore(
    adapterOpener(addon, model, { spec, dtype, maxRank: maxLoraRank }),
    maxAdapterBytes,
    () => addon.liveAdapters(),
  );
  const trainers = new TrainerHost(addon, model, trainerOptions(config), log);
  return {
    isa: model.gpu?.kernels ?? addon.info().isa,
    weightBytes: model.weightBytes,
    pages,
    pageBytes: model.pageBytes,
    engine,
    scheduler,
    grammars: new Grammars(addon, config.vocabulary),
    adapters,
    trainers,
    close: () => {
      trainers.end();
      adapters.close();
      engine.close();
      model.close();
    },
  };
}

function cacheOf(
  config: EngineConfig,
  addon: NativeAddon,
  log: (line: string) => void,
): Promise<CachePlace | undefined> {
  return cachePlace(config, addon.info().isa).catch((error: Error) => {
    log(`Quantised weights are not kept: ${error.message}.`);
    return undefined;
  });
}

function spellerOf({ spellerModel, vocabulary }: EngineConfig): Promise<Speller | null> {
  if (spellerModel === undefined || !vocabulary) return Promise.resolve(null);
  const speller = readSpeller(spellerModel, vocabulary);
  // Told when the weights are there.
  speller.catch(() => {});
  return speller;
}

function trainerOptions(config: EngineConfig): TrainerOptions {
  return {
    maxRowTokens: config.maxTrainingRowTokens ?? DEFAULT_ROW_TOKENS,
    maxRowBytes: config.maxTrainingRowBytes ?? DEFAULT_ROW_BYTES,
    recompute: config.recomputeActivations ?? false,
  };
}

function startTransfers(
  { scheduler, engine, isa, pageBytes }: Omit<LoadedNative, 'transfers'>,
  config: EngineConfig,
  settings: TransferSettings,
  log: (line: string) => void,
): Promise<KvTransfers> {
  // Quantised weights compute other keys and values, and an int8 cache stores others.
  const dtype = arithmeticName(config);
  const identity = { modelDigest: settings.modelDigest, dtype, isa, pageBytes, pageSize: PAGE_SIZE };
  return KvTransfers.start(settings, { scheduler, engine, identity, log });
}

function schedulerOptions(config: EngineConfig, pages: number): SchedulerOptions {
  const { maxSequences, maxBatchTokens, maxModelLen, enableChunkedPrefill, maxLogprobs } = config;
  const { vocabSize } = config.spec;
  const { enablePrefixCaching = true, schedulingPolicy = 'fcfs' } = config;
  const sizes = { maxSequences, maxBatchTokens, maxModelLen, pages, vocabSize, maxLogprobs };
  const { holdShare = 0, holdMs = 0 } = config.kvTransfer?.listen ? config.kvTransfer : {};
  const queue = { enableChunkedPrefill, enablePrefixCaching, schedulingPolicy };
  const { speculation, stepTargetMs = 0 } = config;
  return { ...sizes, stepTargetMs, ...queue, holdShare, holdMs, ...(speculation && { speculation }) };
}

function engineOptions(config: EngineConfig, model: NativeModel): EngineOptions {
  const { maxSequences, maxBatchTokens, maxModelLen, samplableVocab, maxLogprobs } = config;
  const beside = (config.maxAdapterBytes ?? DEFAULT_ADAPTER_BYTES) + trainerOptions(config).maxRowBytes;
  const reserveBytes = model.gpu ? beside : 0;
  const options = { maxSequences, maxBatchTokens, pages: 1, maxModelLen, samplableVocab, maxLogprobs, reserveBytes };
  return { ...options, pages: pageCount(config, model, options) };
}

/** Pages that the KV memory holds; at least one sequence of full length must fit, so that every request can end. */
function pageCount(config: EngineConfig, { pageBytes, gpu }: NativeModel, options: EngineOptions): number {
  const { kvCacheBytes, maxModelLen, maxSequences } = config;
  const least = pagesFor(maxModelLen);
  // Never more than all slots at full length could use.
  const room = gpu ? Math.min(gpu.mostPages(options), (least + 1) * maxSequences) : 0;
  const pages = kvCacheBytes === null ? room : Math.floor(kvCacheBytes / pageBytes);
  if (pages >= least) return pages;
  const needed = `one sequence of --max-model-len ${maxModelLen} tokens needs ${mebibytes(least * pageBytes)}`;
  if (kvCacheBytes !== null) {
    const given = `--kv-cache-memory is ${mebibytes(kvCacheBytes)}`;
    throw new RangeError(`${given}, but ${needed}: raise the first or lower the second.`);
  }
  throw new RangeError(
    `The GPU has room for ${mebibytes(room * pageBytes)} of keys and values beside the weights, working memory and ` +
      `${mebibytes(options.reserveBytes ?? 0)} for adapters and training, but ${needed}: ` +
      'lower --max-model-len, --training-memory or --max-adapter-memory.',
  );
}

function memoryText(parts: { name: string; bytes: number }[]): string {
  return `GPU memory: ${parts.map(({ name, bytes }) => `${name} ${mebibytes(bytes)}`).join(', ')}`;
}
