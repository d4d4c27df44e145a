/** Creating, listing and deleting models and their checkpoints. */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import type { Logger } from 'pino';
import type { CheckpointItem } from '../../../schemas/preview/models.ts';
import type { PageQuery } from '../../../schemas/preview/page.ts';
import { invalid } from '../../../schemas/validation-error.ts';
import { folderBytes, removeUnnamed, type BlobStore } from '../../store/blob-store.ts';
import type { ModelRepository, StoredCheckpoint, StoredModel } from '../../store/model-repository.ts';
import { pageLength, type RowPage } from '../../store/row-page.ts';
import { SqliteError } from '../../store/sqlite-client.ts';
import { ADAPTER_WEIGHTS_FILE } from '../../models/adapter-files.ts';
import { holdsVersion } from '../../models/adapter-version.ts';
import { MissingFileError } from '../../models/errors.ts';
import { ADAPTER_CONFIG_FILE } from '../../models/peft-config.ts';
import { notFound, ServiceError } from '../service-error.ts';
import type { StorageQuota } from '../storage-quota.ts';
import { damagedFile, missingFile, openStored, type StoredContent } from '../stored-file.ts';
import { checkpointRef, registeredModel, type ServingObstacle } from './records.ts';
import type { ModelRegistry, RegisteredModel } from './registry.ts';

/** Makes the adapter of step 0, which changes nothing. */
export interface IdentityAdapter {
  /** What a model's record keeps of the adapter's shape. */
  readonly lora: { rank: number; alpha: number };
  /** Writes the adapter's files into an empty folder; resolves with the digest of their content. */
  write(directory: string, modelId: string): Promise<string>;
}

export interface BaseModel {
  /** Served names; the first is the one in responses. */
  names: readonly string[];
  /** Name of the model's directory. */
  root: string;
  /** Digest of the weights. */
  digest: string;
}

export interface ModelServiceOptions {
  repository: ModelRepository;
  blobs: BlobStore;
  registry: ModelRegistry;
  identity: IdentityAdapter;
  base: BaseModel;
  /** What of the server's settings keeps models from being trained; null: nothing. */
  obstacle: string | null;
  servingObstacle: ServingObstacle;
  maxModelsPerEntity: number;
  quota: StorageQuota;
  log: Logger;
  /** Stops what trains the model; resolves when nothing of it runs any more. */
  stopJobs(modelId: string): Promise<void>;
  /** The engine may forget this version. */
  unload(version: string): Promise<void>;
}

export interface CreateModel {
  project: string;
  name: string;
  baseModel: string;
  entity: string | null;
  returnExisting: boolean;
}

const ADAPTER_FILES = [ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE];

/** Longer than a request waits for its adapter; a restart removes what is left. */
const ADAPTER_GRACE_MS = 120_000;

export class ModelService {
  readonly #options: ModelServiceOptions;
  /** Models being made, by entity/project/name. */
  readonly #making = new Map<string, Promise<RegisteredModel>>();

  constructor(options: ModelServiceOptions) {
    this.#options = options;
  }

  /** Fills the registry from the store. Call once, before the first request. */
  async load(): Promise<void> {
    const { repository, registry, blobs, base, obstacle, servingObstacle } = this.#options;
    const { models, checkpoints } = await repository.all();
    if (obstacle !== null && models.length > 0)
      throw new Error(
        `${obstacle} The data directory has ${models.length}: start without it, or with another --data-dir.`,
      );
    for (const model of models) registry.add(registeredModel(model, base.digest, servingObstacle), []);
    for (const checkpoint of checkpoints) registry.addCheckpoint(checkpoint.modelId, checkpointRef(checkpoint, blobs));
  }

  async create(caller: string, request: CreateModel): Promise<RegisteredModel> {
    const { registry } = this.#options;
    if (request.entity !== null && request.entity !== caller) {
      throw new ServiceError('forbidden', 'The API key does not belong to this entity.', 'entity');
    }
    this.#requireBase(request.baseModel);
    const key = `${caller}/${request.project}/${request.name}`;
    const under = this.#making.get(key);
    // No await where nothing is under way: between the look and the entry below nobody else may look.
    const existing = under === undefined ? registry.named(caller, request.project, request.name) : await under;
    if (existing !== null) return this.#existing(existing, request);
    const unservable = this.#options.servingObstacle(this.#options.identity.lora.rank);
    if (unservable !== null) throw new ServiceError('conflict', unservable);
    const making = [...this.#making.keys()].filter((other) => other.startsWith(`${caller}/`)).length;
    if (registry.ofEntity(caller).length + making >= this.#options.maxModelsPerEntity) {
      throw new ServiceError('conflict', `An entity may have ${this.#options.maxModelsPerEntity} models; delete one.`);
    }
    const made = this.#options.quota
      .check(caller)
      .then(() => this.#make(caller, request))
      .finally(() => this.#making.delete(key));
    this.#making.set(key, made);
    return made;
  }

  /** Throws not_found for another entity's model as for none. */
  require(modelId: string, entity: string): RegisteredModel {
    const model = this.#options.registry.owned(modelId, entity);
    if (model === null) throw notFound('model');
    return model;
  }

  async checkpoints(modelId: string, entity: string, query: PageQuery): Promise<RowPage<CheckpointItem>> {
    this.require(modelId, entity);
    const { repository } = this.#options;
    const after = query.after === null ? null : await repository.stepOf(modelId, query.after);
    if (query.after !== null && after === null) throw invalid(['query', 'after'], 'There is no such checkpoint.');
    const found = await repository.checkpointPage(modelId, { after, limit: query.limit + 1, order: query.order });
    const bytes = await repository.metricBytes(found.map(({ id }) => id));
    const sizes = found.map(({ id }) => ({ bytes: bytes.get(id) ?? 0 }));
    const shown = found.slice(0, pageLength(sizes, query.limit));
    const metrics = await repository.metrics(shown.map(({ id }) => id));
    const rows = shown.map(({ id, step }) => ({ id, step, metrics: metrics.get(id) ?? {} }));
    return { rows, hasMore: found.length > shown.length };
  }

  /** A file of a step's adapter; the optimizer's state stays here. */
  async adapterFile(modelId: string, entity: string, step: number, file: string): Promise<StoredContent> {
    this.require(modelId, entity);
    const checkpoint = this.#options.registry.checkpoint(modelId, step);
    if (checkpoint === null) throw notFound('checkpoint');
    if (!ADAPTER_FILES.includes(file)) throw notFound('file of the checkpoint');
    const { directory, version } = checkpoint.adapter;
    // One digest is of both files.
    const whole = await holdsVersion(directory, version).catch((error: unknown) => {
      throw error instanceof MissingFileError ? missingFile(error) : error;
    });
    if (!whole) throw damagedFile(join(directory, `${ADAPTER_CONFIG_FILE} or ${ADAPTER_WEIGHTS_FILE}`));
    return openStored(join(directory, file));
  }

  async deleteCheckpoints(
    modelId: string,
    entity: string,
    steps: number[],
  ): Promise<{ deleted: number; notFound: number[] }> {
    this.require(modelId, entity);
    const asked = [...new Set(steps)];
    const gone = await this.#options.repository.removeCheckpoints(modelId, asked);
    for (const { step } of gone) this.#options.registry.removeCheckpoint(modelId, step);
    await this.#forget(gone.map((checkpoint) => checkpointRef(checkpoint, this.#options.blobs).adapter.version));
    const bytes = gone.reduce((sum, checkpoint) => sum + checkpoint.bytes, 0);
    this.#removeLater(
      entity,
      gone.map(({ blobKey }) => blobKey),
      bytes,
    );
    const found = new Set(gone.map(({ step }) => step));
    return { deleted: gone.length, notFound: asked.filter((step) => !found.has(step)) };
  }

  /** Repeated, it answers what the first one did. */
  async delete(modelId: string, entity: string): Promise<{ deletedCheckpoints: number }> {
    const { repository, registry } = this.#options;
    const result = await repository.remove(modelId, entity, new Date().toISOString());
    if (result === null) throw notFound('model');
    if (result.first) {
      const checkpoints = registry.remove(modelId);
      await this.#options.stopJobs(modelId);
      await this.#forget(checkpoints.map(({ adapter }) => adapter.version));
      const { blobs, log } = this.#options;
      await removeUnnamed(
        blobs,
        result.blobs.filter((key) => !key.startsWith('adapters/')),
        log,
      );
      const adapters = result.blobs.filter((key) => key.startsWith('adapters/'));
      this.#removeLater(entity, adapters, result.checkpointBytes);
    }
    return { deletedCheckpoints: result.deletedCheckpoints };
  }

  #existing(model: RegisteredModel, request: CreateModel): RegisteredModel {
    if (!request.returnExisting) {
      const message = `The model ${model.name} exists in the project ${model.project}; return_existing returns it.`;
      throw new ServiceError('conflict', message, 'name');
    }
    if (model.obstacle === null) return model;
    if (model.usable) throw new ServiceError('conflict', model.obstacle, 'name');
    const message = `The model ${model.name} was made on other base weights (${model.baseModel}) than the server has now.`;
    throw new ServiceError('conflict', message, 'base_model');
  }

  /** Compared as a name only; it never becomes a path. */
  #requireBase(asked: string): void {
    const { obstacle } = this.#options;
    if (obstacle !== null) throw invalid(['body', 'base_model'], obstacle, 'value_error');
    const { names, root } = this.#options.base;
    const known = [...names, root];
    const last = (name: string) => name.slice(name.lastIndexOf('/') + 1);
    if (
      known.includes(asked) ||
      (/^\w[\w.-]*\/\w[\w.-]*$/.test(asked) && known.some((name) => last(name) === last(asked)))
    ) {
      return;
    }
    throw invalid(['body', 'base_model'], `The server has one base model: ${names[0] ?? root}.`, 'value_error');
  }

  async #make(entity: string, request: CreateModel): Promise<RegisteredModel> {
    const { repository, blobs, registry, identity, base } = this.#options;
    const createdAt = new Date().toISOString();
    const draft = await blobs.draft('adapters');
    try {
      const id = randomUUID();
      const digest = await identity.write(draft.directory, id);
      const bytes = await folderBytes(draft.directory);
      await draft.seal();
      const model: StoredModel = {
        id,
        entity,
        project: request.project,
        name: request.name,
        baseModel: request.baseModel,
        baseDigest: base.digest,
        runId: randomUUID(),
        lora: identity.lora,
        nextStep: 1,
        createdAt,
      };
      const first: StoredCheckpoint = {
        id: randomUUID(),
        modelId: model.id,
        step: 0,
        jobId: null,
        version: digest,
        blobKey: draft.key,
        bytes,
        createdAt,
      };
      await repository.create(model, first);
      const registered = registeredModel(model, base.digest, this.#options.servingObstacle);
      registry.add(registered, [checkpointRef(first, blobs)]);
      return registered;
    } catch (error) {
      await draft.discard();
      if (error instanceof SqliteError && error.code === 'SQLITE_CONSTRAINT_UNIQUE') {
        throw new ServiceError(
          'conflict',
          `The model ${request.name} exists in the project ${request.project}.`,
          'name',
        );
      }
      throw error;
    }
  }

  /** The engine may be down: it has then forgotten already. */
  async #forget(versions: string[]): Promise<void> {
    for (const version of versions) {
      await this.#options.unload(version).catch((error: unknown) => {
        this.#options.log.warn({ err: error, version }, 'an adapter was not unloaded');
      });
    }
  }

  /** A request that was admitted before the delete may still have to load its adapter. */
  #removeLater(entity: string, keys: string[], bytes: number): void {
    const { blobs, log, quota } = this.#options;
    const { gone } = quota.leave(entity, bytes, ADAPTER_GRACE_MS);
    setTimeout(() => void removeUnnamed(blobs, keys, log).finally(gone), ADAPTER_GRACE_MS).unref();
  }
}
