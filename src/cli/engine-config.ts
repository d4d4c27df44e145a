/** Settings and a loaded model to what the engine process needs. Refuses what cannot work by flag name. */
import { statSync } from 'node:fs';
import { resolve } from 'node:path';
import type { EngineConfig } from '../control/engine/protocol.ts';
import type { ExtensionSettings } from '../control/extensions/load.ts';
import { PAGE_SIZE, type ComputeDType, type ModelSpec, type TensorEntry } from '../control/engine/native.ts';
import { MAX_BEAM_ALTERNATIVES } from '../control/sessions/beams.ts';
import { reservedNames } from '../control/sessions/reserved-names.ts';
import type { LoadedModel } from '../control/models/model.ts';
import { isInBlocks } from '../control/models/tensors.ts';
import type { Settings } from '../control/settings.ts';
import { usableMemory } from './machine.ts';

const LARGEST_DEFAULT_KV_BYTES = 4 * 2 ** 30;
const KV_SHARE_OF_MEMORY = 0.25;
/** Of a GPU, whose memory is not known here. */
const GPU_TRAINING_BYTES = 4 * 2 ** 30;

/** Settings that cannot work, whatever the model. */
export function refuseSettings(settings: Settings): void {
  if (settings.device === 'cuda' && settings.dtype === 'float32')
    throw new Error('--device cuda computes in bfloat16: leave out --dtype float32.');
  if (settings.device === 'cuda' && settings.kvCacheDtype === 'int8')
    throw new Error('--device cuda has no kernels for keys and values of 8 bits yet: leave out --kv-cache-dtype int8.');
  if (settings.quantize === 'fp8' && settings.device !== 'cuda')
    throw new Error('--quantize fp8 needs --device cuda: on the CPU take int8.');
  const memory = usableMemory();
  const kvMemory = settings.kvCacheMemoryBytes ?? 0;
  if (settings.device !== 'cuda' && kvMemory > memory)
    throw new Error(`--kv-cache-memory is ${inGiB(kvMemory)}, and this machine has ${inGiB(memory)}.`);
  refuseTransferSettings(settings);
  const [reserved] = reservedNames(settings.defaultChatTemplateKwargs);
  if (reserved !== undefined) throw new Error(`--default-chat-template-kwargs must not set '${reserved}'.`);
  const { loraRank, maxLoraRank, trainingFileRoot: root } = settings;
  if (loraRank > maxLoraRank)
    throw new Error(
      `--lora-rank ${loraRank} is more than --max-lora-rank (${maxLoraRank}): no new model could be served.`,
    );
  if (root !== null && !isFolder(root)) throw new Error(`--training-file-root ${root} is no folder.`);
}

function isFolder(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false;
  }
}

function inGiB(bytes: number): string {
  return `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

function refuseTransferSettings(settings: Settings): void {
  const { kvHost, kvPort, kvPeers, kvSecret, enablePrefixCaching } = settings;
  const transfers = kvPort !== null || kvPeers.length > 0;
  if (transfers && kvSecret === null) throw new Error('--kv-port and --kv-peers need --kv-secret.');
  if (!transfers && kvSecret !== null) throw new Error('--kv-secret means nothing without --kv-port or --kv-peers.');
  if (kvSecret !== null && kvSecret.length < 16) throw new Error('--kv-secret must have at least 16 characters.');
  if (kvPort !== null && (kvHost === '0.0.0.0' || kvHost === '::'))
    throw new Error(`--kv-host ${kvHost}: peers are told this address, so it must be one that they reach.`);
  if (kvPeers.length > 0 && !enablePrefixCaching)
    throw new Error('--kv-peers needs the prefix cache (--enable-prefix-caching).');
}

/** `warn` hears of what is less than the model could do. */
export function engineConfig(
  settings: Settings,
  model: LoadedModel,
  warn: (text: string) => void = () => {},
): EngineConfig {
  if (settings.quantize !== 'none' && model.tensors.some(isInBlocks)) {
    throw new Error('--quantize: the weights are already quantised.');
  }
  // 'auto' is the CPU: one kind of GPU has been tried.
  const device = settings.device === 'cuda' ? 'cuda' : 'cpu';
  const dtype = device === 'cuda' ? 'bfloat16' : computeDType(settings.dtype, model.checkpointDType);
  const kvCacheDtype = kvType(settings.kvCacheDtype, dtype);
  const pageBytes = kvPageBytes(model.spec, dtype, kvCacheDtype);
  const asked = modelLength(settings.maxModelLen, model.maxPosition);
  const ownBytes = device === 'cpu' ? defaultKvBytes(pageBytes, asked, settings.maxNumSeqs) : null;
  const kvCacheBytes = settings.kvCacheMemoryBytes ?? ownBytes;
  const fits = kvCacheBytes === null ? 0 : Math.floor(kvCacheBytes / pageBytes) * PAGE_SIZE;
  // A length that was asked for and does not fit is refused when the engine starts; the default gives way.
  const maxModelLen = settings.maxModelLen === null && fits > 0 ? Math.min(asked, fits) : asked;
  if (maxModelLen < asked) {
    warn(
      `The model allows ${asked} positions, the KV cache holds ${maxModelLen}: that is the longest sequence. ` +
        'Raise --kv-cache-memory for longer ones.',
    );
  }
  return {
    spec: model.spec,
    files: model.files,
    samples: model.samples,
    tensors: model.tensors,
    dtype,
    ...quantization(settings, model),
    ...(kvCacheDtype && { kvCacheDtype }),
    device,
    threads: settings.threads,
    maxSequences: settings.maxNumSeqs,
    maxBatchTokens: settings.maxNumBatchedTokens,
    stepTargetMs: settings.stepTargetMs,
    maxModelLen,
    samplableVocab: Math.min(model.tokenizerSize, model.spec.vocabSize),
    maxLogprobs: engineLogprobs(settings.maxLogprobs, model.spec.vocabSize),
    kvCacheBytes,
    enableChunkedPrefill: settings.enableChunkedPrefill,
    enablePrefixCaching: settings.enablePrefixCaching,
    ...(settings.enableJumpForward && { spellerModel: model.path }),
    schedulingPolicy: settings.schedulingPolicy,
    ...(settings.speculativeConfig && { speculation: settings.speculativeConfig }),
    ...(settings.engineExtensions.length > 0 && { extensions: extensionSettings(settings) }),
    ...kvTransfer(settings, model),
    trainingFloor: settings.trainingFloor,
    maxTrainingRowTokens: settings.maxTrainingRowTokens,
    maxTrainingRowBytes: settings.trainingMemoryBytes ?? defaultTrainingMemory(device),
    recomputeActivations: settings.recomputeActivations,
    maxLoraRank: settings.maxLoraRank,
    maxAdapterBytes: settings.maxAdapterMemoryBytes,
    faults: settings.faults,
  };
}

/** A beam search asks for more than clients may. */
function engineLogprobs(asked: number, vocabSize: number): number {
  return asked === -1 ? vocabSize : Math.min(Math.max(asked, MAX_BEAM_ALTERNATIVES), vocabSize);
}

function quantization(
  { quantize, weightCacheBytes, dataDir }: Settings,
  { digest }: LoadedModel,
): Pick<EngineConfig, 'quantize' | 'weightCache'> {
  if (quantize === 'none') return {};
  const directory = resolve(dataDir, 'weights');
  return { quantize, weightCache: { directory, maxBytes: weightCacheBytes, modelDigest: digest } };
}

function kvTransfer(settings: Settings, model: LoadedModel): Pick<EngineConfig, 'kvTransfer'> {
  const { kvHost, kvPort, kvPeers, kvSecret, kvHoldSeconds, kvHoldPercent, kvTransferTimeoutMs } = settings;
  if (kvSecret === null) return {};
  const listen = kvPort === null ? null : { host: kvHost, port: kvPort };
  const bounds = { holdMs: 1000 * kvHoldSeconds, holdShare: kvHoldPercent / 100, timeoutMs: kvTransferTimeoutMs };
  return { kvTransfer: { listen, peers: kvPeers, secret: kvSecret, modelDigest: model.digest, ...bounds } };
}

export function extensionSettings(settings: Settings): ExtensionSettings {
  return { modules: settings.engineExtensions, timeoutMs: settings.engineExtensionTimeoutMs };
}

export function servedNames(settings: Settings, model: Pick<LoadedModel, 'name'>): string[] {
  return settings.servedModelNames.length > 0 ? [...new Set(settings.servedModelNames)] : [model.name];
}

export function parameterCount(tensors: TensorEntry[]): number {
  return tensors.reduce((sum, tensor) => sum + tensor.shape.reduce((product, size) => product * size, 1), 0);
}

export function modelLength(asked: number | null, most: number): number {
  if (asked === null) return most;
  if (asked <= most) return asked;
  throw new Error(`--max-model-len ${asked} is more than the ${most} positions of the model.`);
}

/** F16 weights compute in F32: their range fits, and no rounding to BF16 comes in. */
function computeDType(asked: Settings['dtype'], checkpoint: LoadedModel['checkpointDType']): ComputeDType {
  if (asked !== 'auto') return asked;
  return checkpoint === 'bfloat16' ? 'bfloat16' : 'float32';
}

/** undefined = the type of `dtype`. */
function kvType(asked: Settings['kvCacheDtype'], dtype: ComputeDType): 'int8' | undefined {
  if (asked === 'int8') return asked;
  if (asked === 'bfloat16' && dtype !== asked)
    throw new Error(`--kv-cache-dtype bfloat16 needs --dtype bfloat16, and this is ${dtype}.`);
  return undefined;
}

/** Bytes of one KV page: keys and values of every layer, heads padded to 16, int8 with a float per position (native/src/ops/kv_pages.h). */
function kvPageBytes(spec: ModelSpec, dtype: ComputeDType, kvCacheDtype: 'int8' | undefined): number {
  const head = Math.ceil(spec.headDim / 16) * 16;
  const position = kvCacheDtype === 'int8' ? head + 4 : head * (dtype === 'bfloat16' ? 2 : 4);
  return 2 * spec.layers * spec.kvHeads * PAGE_SIZE * position;
}

/** Never more than all slots at full length could use. */
function defaultKvBytes(pageBytes: number, maxModelLen: number, slots: number): number {
  const usable = pageBytes * (Math.ceil(maxModelLen / PAGE_SIZE) + 1) * slots;
  return Math.min(usable, defaultKvMemory());
}

function defaultTrainingMemory(device: 'cpu' | 'cuda'): number {
  return device === 'cuda' ? GPU_TRAINING_BYTES : Math.floor(usableMemory() / 4);
}

/** Where nothing is said of the KV cache. */
export function defaultKvMemory(): number {
  return Math.floor(Math.min(LARGEST_DEFAULT_KV_BYTES, usableMemory() * KV_SHARE_OF_MEMORY));
}
