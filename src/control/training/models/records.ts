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

const OTHER_BASE = 'The model was made on other base weights than the server has now.';

/** Why an adapter of this rank cannot be served; null: it can. */
export type ServingObstacle = (rank: number) => string | null;

export function registeredModel(
  model: StoredModel,
  baseDigest: string,
  servingObstacle: ServingObstacle = () => null,
): RegisteredModel {
  const usable = model.baseDigest === baseDigest;
  const lora = model.lora as AdapterShape;
  return {
    id: model.id,
    entity: model.entity,
    project: model.project,
    name: model.name,
    baseModel: model.baseModel,
    runId: model.runId,
    usable,
    obstacle: usable ? servingObstacle(lora.rank) : OTHER_BASE,
    lora,
    created: Math.floor(Date.parse(model.createdAt) / 1000),
  };
}
