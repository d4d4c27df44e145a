/** Settings and a loaded model to what the engine process needs. Refuses what cannot work by flag name. */
import { basename } from 'node:path';
import type { EngineConfig } from '../control/engine/protocol.ts';
import { PAGE_SIZE, type ComputeDType, type ModelSpec, type TensorEntry } from '../control/engine/native.ts';
import { MAX_BEAM_WIDTH } from '../control/sessions/beams.ts';
import type { LoadedModel } from '../control/models/model.ts';
import type { Settings } from '../control/settings.ts';
import { usableMemory } from './machine.ts';

const LARGEST_DEFAULT_KV_BYTES = 4 * 2 ** 30;
const KV_SHARE_OF_MEMORY = 0.25;
/** Widest element a KV page may hold. */
const KV_ELEMENT_BYTES = 4;

/** Settings whose feature is not built. */
export function refuseNotBuiltSettings(settings: Settings): void {
  if (settings.device === 'cuda') throw new Error('--device cuda is not supported yet.');
}

export function engineConfig(settings: Settings, model: LoadedModel): EngineConfig {
  const maxModelLen = modelLength(settings.maxModelLen, model.maxPosition);
  return {
    spec: model.spec,
    files: model.files,
    tensors: model.tensors,
    dtype: computeDType(settings.dtype, model.checkpointDType),
    threads: settings.threads,
    maxSequences: settings.maxNumSeqs,
    maxBatchTokens: settings.maxNumBatchedTokens,
    maxModelLen,
    samplableVocab: Math.min(model.tokenizerSize, model.spec.vocabSize),
    // A beam search asks for twice its width.
    maxLogprobs: Math.min(Math.max(settings.maxLogprobs, 2 * MAX_BEAM_WIDTH), model.spec.vocabSize),
    kvCacheBytes: settings.kvCacheMemoryBytes ?? defaultKvBytes(model.spec, maxModelLen, settings.maxNumSeqs),
    enableChunkedPrefill: settings.enableChunkedPrefill,
    enablePrefixCaching: settings.enablePrefixCaching,
    schedulingPolicy: settings.schedulingPolicy,
    faults: settings.faults,
  };
}

export function servedNames(settings: Settings, model: LoadedModel): string[] {
  return settings.servedModelNames.length > 0 ? settings.servedModelNames : [basename(model.directory)];
}

export function parameterCount(tensors: TensorEntry[]): number {
  return tensors.reduce((sum, tensor) => sum + tensor.shape.reduce((product, size) => product * size, 1), 0);
}

function modelLength(asked: number | null, most: number): number {
  if (asked === null) return most;
  if (asked <= most) return asked;
  throw new Error(`--max-model-len ${asked} is more than the ${most} positions of the model.`);
}

/** F16 weights compute in F32: their range fits, and no rounding to BF16 comes in. */
function computeDType(asked: Settings['dtype'], checkpoint: LoadedModel['checkpointDType']): ComputeDType {
  if (asked !== 'auto') return asked;
  return checkpoint === 'bfloat16' ? 'bfloat16' : 'float32';
}

/** Never more than all slots at full length could use. */
function defaultKvBytes(spec: ModelSpec, maxModelLen: number, slots: number): number {
  const perToken = 2 * spec.layers * spec.kvHeads * spec.headDim * KV_ELEMENT_BYTES;
  const usable = perToken * PAGE_SIZE * (Math.ceil(maxModelLen / PAGE_SIZE) + 1) * slots;
  return Math.floor(Math.min(usable, LARGEST_DEFAULT_KV_BYTES, usableMemory() * KV_SHARE_OF_MEMORY));
}
