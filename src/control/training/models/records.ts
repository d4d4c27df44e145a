/** Stored rows as the registry keeps them. */
import type { BlobStore } from '../../store/blob-store.ts';
import type { StoredCheckpoint, StoredModel } from '../../store/model-repository.ts';
import type { AdapterShape } from '../adapter-init.ts';
import type { RegisteredCheckpoint, RegisteredModel } from './registry.ts';

/**
 * Two checkpoints may have the same content (every step 0, a job with nothing to train); each gets a version of its own, so that unloading
 * one never takes the other's.
 */
export function checkpointRef(checkpoint: StoredCheckpoint, blobs: BlobStore): RegisteredCheckpoint {
  const version = `${checkpoint.version}.${checkpoint.id}`;
  return {
    id: checkpoint.id,
    step: checkpoint.step,
    adapter: { version, directory: blobs.path(checkpoint.blobKey) },
  };
}

export function registeredModel(model: StoredModel, baseDigest: string): RegisteredModel {
  return {
    id: model.id,
    entity: model.entity,
    project: model.project,
    name: model.name,
    baseModel: model.baseModel,
    runId: model.runId,
    usable: model.baseDigest === baseDigest,
    lora: model.lora as AdapterShape,
    created: Math.floor(Date.parse(model.createdAt) / 1000),
  };
}
