/** The runner's ports over the store and the blobs. */
import { createHash, randomUUID } from 'node:crypto';
import type { Logger } from 'pino';
import { folderBytes, removeUnnamed, type BlobDraft, type BlobStore } from '../../store/blob-store.ts';
import type { JobRepository } from '../../store/job-repository.ts';
import type { LogRepository } from '../../store/log-repository.ts';
import type { ModelRepository, StoredCheckpoint } from '../../store/model-repository.ts';
import type { ChatEncoder } from '../../sessions/open-chat.ts';
import { threadedBatch } from '../batch/threaded-batch.ts';
import type { TrainingInputs } from '../intake/inputs.ts';
import { checkpointRef } from '../models/records.ts';
import { keptReference } from './kept-references.ts';
import type { ModelRegistry } from '../models/registry.ts';
import { TrainingFailedError } from '../errors.ts';
import {
  CANCELLED_MESSAGE,
  lastRowOf,
  type Checkpoint,
  type Checkpoints,
  type EventData,
  type JobEvents,
  type JobInputs,
  type JobSnapshots,
  type KeptAdapter,
  type RunLog,
  type TrainingEventType,
  type TrainingJob,
  type WantedBatch,
} from '../ports.ts';
import type { RlBatch } from '../rl-batch.ts';
import { isDamage, isShortage } from '../service-error.ts';
import { readTensors, type TensorFile } from '../tensor-file.ts';

const SNAPSHOT_FILE = 'snapshot';

/** The job or its model has been deleted while it ran: there is nothing left to train. */
class GoneError extends Error {
  constructor(what: 'Job' | 'Model', id: string) {
    super(`${what} ${id} has gone.`);
    this.name = 'GoneError';
  }
}

export class StoredInputs implements JobInputs {
  readonly #jobs: JobRepository;
  readonly #inputs: TrainingInputs;
  readonly #log: Logger;

  constructor(jobs: JobRepository, inputs: TrainingInputs, log: Logger) {
    this.#jobs = jobs;
    this.#inputs = inputs;
    this.#log = log;
  }

  async rlBatch({ jobId, config, room }: WantedBatch, chat: ChatEncoder, signal: AbortSignal): Promise<RlBatch> {
    const file = this.#inputs.file(await this.#key(jobId));
    return threadedBatch({ file, config, room, seed: jobId }, chat, signal).catch((error: unknown) => {
      throw this.#explained(jobId, error);
    });
  }

  async reference(jobId: string, step: number): Promise<KeptAdapter | null> {
    return keptReference(this.#inputs.folder(await this.#key(jobId)), step);
  }

  async *trainingData(jobId: string): AsyncGenerator<Uint8Array> {
    const content = this.#inputs.content(await this.#key(jobId));
    try {
      yield* content;
    } catch (error) {
      throw this.#explained(jobId, error);
    }
  }

  #explained(jobId: string, error: unknown): unknown {
    if (!isDamage(error)) return error;
    this.#log.error({ err: error, job: jobId }, 'the data of a job are damaged');
    return new TrainingFailedError(
      "The job's data are damaged in the server's storage: send them again, as a new job.",
    );
  }

  async #key(jobId: string): Promise<string> {
    const key = (await this.#jobs.find(jobId))?.inputKey;
    if (typeof key !== 'string') throw new GoneError('Job', jobId);
    return key;
  }
}

export class StoredEvents implements JobEvents {
  readonly #jobs: JobRepository;
  readonly #blobs: BlobStore;
  readonly #log: Logger;

  constructor(jobs: JobRepository, blobs: BlobStore, log: Logger) {
    this.#jobs = jobs;
    this.#blobs = blobs;
    this.#log = log;
  }

  /** The last event and the job's end are one write. */
  async append(jobId: string, key: string, type: TrainingEventType, data: EventData): Promise<void> {
    const event = { key, type, data, at: new Date().toISOString() };
    if (type !== 'training_ended' && type !== 'training_failed') {
      await this.#jobs.append(jobId, event);
      return;
    }
    const cancelled = type === 'training_failed' && ((await this.#jobs.find(jobId))?.cancelRequested ?? false);
    const action = type === 'training_ended' ? 'succeed' : cancelled ? 'cancel' : 'fail';
    await removeUnnamed(this.#blobs, (await this.#jobs.end(jobId, action, event)) ?? [], this.#log);
  }
}

export class StoredSnapshots implements JobSnapshots {
  readonly #jobs: JobRepository;
  readonly #blobs: BlobStore;
  readonly #log: Logger;

  constructor(jobs: JobRepository, blobs: BlobStore, log: Logger) {
    this.#jobs = jobs;
    this.#blobs = blobs;
    this.#log = log;
  }

  async load(jobId: string): Promise<TensorFile | null> {
    const job = await this.#jobs.find(jobId);
    if (job === null) throw new GoneError('Job', jobId);
    if (job.snapshotKey === null) return null;
    const digest = createHash('sha256');
    const file = await readTensors(this.#blobs.path(job.snapshotKey, SNAPSHOT_FILE), { digest }).catch(damagedAsNull);
    if (file !== null && digest.digest('hex') === job.snapshotSha256) return file;
    // The job begins again, and with the same data ends the same.
    this.#log.error({ job: jobId }, 'the snapshot of a job is damaged: the job begins again');
    return null;
  }

  async save(jobId: string, snapshot: Iterable<Uint8Array>): Promise<number> {
    const draft = await this.#blobs.draft('snapshots');
    try {
      const { bytes, sha256 } = await draft.write(SNAPSHOT_FILE, snapshot);
      await draft.seal();
      const before = await this.#jobs.setSnapshot(jobId, draft.key, sha256);
      await removeUnnamed(this.#blobs, before === null ? [] : [before], this.#log);
      return bytes;
    } catch (error) {
      await draft.discard();
      throw error;
    }
  }
}

/** What cannot be read for now is as good as it was. */
function damagedAsNull(error: unknown): null {
  if (isShortage(error)) throw error;
  return null;
}

export class StoredCheckpoints implements Checkpoints {
  readonly #models: ModelRepository;
  readonly #jobs: JobRepository;
  readonly #blobs: BlobStore;
  readonly #registry: ModelRegistry;
  readonly #staged = new Map<string, BlobDraft>();

  constructor(models: ModelRepository, jobs: JobRepository, blobs: BlobStore, registry: ModelRegistry) {
    this.#models = models;
    this.#jobs = jobs;
    this.#blobs = blobs;
    this.#registry = registry;
  }

  latest(modelId: string): Promise<Checkpoint | null> {
    return Promise.resolve(this.#registry.checkpoint(modelId, null));
  }

  at(modelId: string, step: number): Promise<Checkpoint | null> {
    return Promise.resolve(this.#registry.checkpoint(modelId, step));
  }

  async nextStep(modelId: string): Promise<number> {
    const model = await this.#models.find(modelId);
    if (model === null) throw new GoneError('Model', modelId);
    return model.nextStep;
  }

  async stage(jobId: string): Promise<string> {
    await this.#staged.get(jobId)?.discard();
    const draft = await this.#blobs.draft('adapters');
    this.#staged.set(jobId, draft);
    return draft.directory;
  }

  async unstage(jobId: string): Promise<void> {
    const draft = this.#staged.get(jobId);
    this.#staged.delete(jobId);
    // A commit that was told as failed may have come through.
    if (draft !== undefined && (await this.#models.ofJob(jobId))?.blobKey !== draft.key) await draft.discard();
  }

  async commit(jobId: string, directory: string, version: string): Promise<Checkpoint> {
    const before = await this.ofJob(jobId);
    if (before !== null) return before;
    const draft = this.#staged.get(jobId);
    const job = await this.#jobs.find(jobId);
    if (draft === undefined || draft.directory !== directory)
      throw new Error(`${directory} was not staged for ${jobId}.`);
    if (job === null) throw new GoneError('Job', jobId);
    const bytes = await folderBytes(directory);
    await draft.seal();
    const published = await this.#models.publish({
      id: randomUUID(),
      modelId: job.modelId,
      jobId,
      version,
      blobKey: draft.key,
      bytes,
      createdAt: new Date().toISOString(),
    });
    this.#staged.delete(jobId);
    if (published === null) {
      await this.#blobs.remove(draft.key);
      // A cancel that came first may not have reached the run yet.
      if ((await this.#jobs.find(jobId))?.cancelRequested) throw new TrainingFailedError(CANCELLED_MESSAGE);
      throw new GoneError('Job', jobId);
    }
    return this.#register(published);
  }

  async ofJob(jobId: string): Promise<Checkpoint | null> {
    const made = await this.#models.ofJob(jobId);
    // It is not known yet where its commit was told as failed and came through.
    return made === null ? null : this.#register(made);
  }

  deletedStep({ id, modelId }: Pick<TrainingJob, 'id' | 'modelId'>): Promise<number | null> {
    return this.#models.deletedStepOf(modelId, id, lastRowOf(id));
  }

  #register(checkpoint: StoredCheckpoint): Checkpoint {
    const ref = checkpointRef(checkpoint, this.#blobs);
    this.#registry.addCheckpoint(checkpoint.modelId, ref);
    return ref;
  }
}

export class StoredRunLog implements RunLog {
  readonly #logs: LogRepository;
  readonly #registry: ModelRegistry;

  constructor(logs: LogRepository, registry: ModelRegistry) {
    this.#logs = logs;
    this.#registry = registry;
  }

  async record(modelId: string, key: string, step: number, metrics: Record<string, number>): Promise<void> {
    const checkpoint = this.#registry.checkpoint(modelId, step);
    await this.#logs.record(modelId, key, step, metrics, checkpoint?.id ?? null);
  }
}
