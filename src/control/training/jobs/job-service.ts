/** Accepting, showing and cancelling training jobs. A job is checked completely, and its data are stored, before it gets an id. */
import { randomUUID } from 'node:crypto';
import type { Logger } from 'pino';
import { invalid, ValidationError } from '../../../schemas/validation-error.ts';
import { validateRlJobFields, type SftJobBody } from '../../../schemas/preview/training-jobs.ts';
import { canonicalUuid } from '../../../schemas/preview/uuid.ts';
import { folderBytes, removeUnnamed, type BlobDraft, type BlobStore } from '../../store/blob-store.ts';
import type {
  JobRecord,
  JobRepository,
  NewJob,
  Repeatable,
  Repeated,
  StoredEvent,
} from '../../store/job-repository.ts';
import type { TrainingInputs } from '../intake/inputs.ts';
import { GROUPS_KEY, asValidation } from '../intake/read-trajectories.ts';
import type { ModelService } from '../models/model-service.ts';
import type { ModelRegistry, RegisteredModel } from '../models/registry.ts';
import { referenceField, referenceStep, resolveRlConfig, type RlConfig } from '../rl-config.ts';
import { notFound, ServiceError } from '../service-error.ts';
import type { StorageQuota } from '../storage-quota.ts';
import { checkLearningRates, resolveSftConfig } from '../sft-config.ts';
import type { JobLoop } from './job-loop.ts';
import { keepReference } from './kept-references.ts';

/** Opens training data by its URL. Rejects with ValidationError at training_data_url; so may the first read. */
export type OpenTrainingData = (url: string, entity: string) => Promise<AsyncIterable<Uint8Array>>;

export interface JobServiceOptions {
  repository: JobRepository;
  registry: ModelRegistry;
  models: ModelService;
  inputs: TrainingInputs;
  blobs: BlobStore;
  quota: StorageQuota;
  loop: JobLoop;
  openTrainingData: OpenTrainingData;
  /** Jobs of one model that have not ended. */
  maxOpenJobs: number;
  log: Logger;
}

export interface JobView {
  job: JobRecord;
  gradientSteps: number;
  numSequences: number | null;
}

const MAX_KEY_LENGTH = 256;

export class JobService {
  readonly #options: JobServiceOptions;

  constructor(options: JobServiceOptions) {
    this.#options = options;
  }

  /** `source`: the body. Resolves with the job's id. */
  async createRl(entity: string, source: AsyncIterable<Uint8Array>, idempotencyKey: string | null): Promise<string> {
    checkKey(idempotencyKey);
    // A repeated request is answered, whatever is full by now.
    if (idempotencyKey === null) await this.#options.quota.check(entity);
    const find = (digest: string) => this.#findRepeated(entity, toRepeatable('training-jobs', idempotencyKey, digest));
    const received = await this.#options.inputs.receiveTrajectories(entity, source, find);
    if ('known' in received) return idOf(received.known);
    const { draft, read } = received;
    try {
      const fields = validateRlJobFields(read.fields);
      if (read.groups === null) throw missingGroups(read.fields);
      const config = fields.experimental_config ?? null;
      const model = this.#trainable(fields.model_id, entity);
      const resolved = asValidation(() => resolveRlConfig(config));
      if (resolved.allowTrainingWithoutLogprobs && read.unscoredFault) throw new ValidationError([read.unscoredFault]);
      const repeatable = toRepeatable('training-jobs', idempotencyKey, read.digest);
      const keep = (job: NewJob) => this.#keepReferences(job, resolved, draft);
      return await this.#accept(await newJob(model, 'rl', config, draft), repeatable, draft, keep);
    } catch (error) {
      await draft.discard();
      throw error;
    }
  }

  async createSft(entity: string, body: SftJobBody, idempotencyKey: string | null, digest: string): Promise<string> {
    checkKey(idempotencyKey);
    const model = this.#trainable(body.model_id, entity);
    const config = body.config ?? null;
    const resolved = asValidation(() => resolveSftConfig(config));
    const repeatable = toRepeatable('sft-training-jobs', idempotencyKey, digest);
    const before = repeatable === null ? null : await this.#options.repository.findRepeated(entity, repeatable);
    if (before !== null) return idOf(before);
    await this.#options.quota.check(entity);
    const source = await this.#options.openTrainingData(body.training_data_url, entity);
    const { draft, read } = await this.#options.inputs.receiveRows(entity, source);
    try {
      asValidation(() => checkLearningRates(resolved, Math.ceil(read.rows / resolved.batchSize)));
      return await this.#accept(await newJob(model, 'sft', config, draft), repeatable, draft);
    } catch (error) {
      await draft.discard();
      throw error;
    }
  }

  async get(id: string, entity: string): Promise<JobView> {
    const { repository } = this.#options;
    const job = await repository.findOwned(id, entity);
    if (job === null) throw notFound('training job');
    const count = (await repository.event(id, 'started'))?.data['num_sequences'];
    // Steps are numbered from 1 without gaps.
    const steps = (await repository.lastEvent(id, 'gradient_step'))?.data['gradient_step'];
    return {
      job,
      gradientSteps: typeof steps === 'number' ? steps : 0,
      numSequences: typeof count === 'number' ? count : null,
    };
  }

  /** One more than the limit where there is a next page. */
  async events(id: string, entity: string, after: string | null, limit: number): Promise<StoredEvent[]> {
    const { repository } = this.#options;
    if ((await repository.findOwned(id, entity)) === null) throw notFound('training job');
    const from = after === null ? -1 : await repository.sequenceOf(id, after);
    if (from === null) throw invalid(['query', 'after'], 'There is no such event.');
    return repository.events(id, from, limit + 1);
  }

  /** Idempotent; a job that has ended stays as it is. */
  async cancel(id: string, entity: string): Promise<JobView> {
    if ((await this.#options.repository.findOwned(id, entity)) === null) throw notFound('training job');
    await this.#options.loop.cancel(id);
    return this.get(id, entity);
  }

  /** Before a body is read, which may name completions that are forgotten by now. Null also for a job that went with its model. */
  async #findRepeated(entity: string, repeatable: Repeatable | null): Promise<Repeated | null> {
    const { repository } = this.#options;
    const before = repeatable === null ? null : await repository.findRepeated(entity, repeatable);
    return before?.kind === 'existing' && (await repository.find(before.id)) === null ? null : before;
  }

  #trainable(modelId: string, entity: string): RegisteredModel {
    const model = this.#options.models.require(canonicalUuid(modelId), entity);
    if (model.obstacle === null) return model;
    throw new ServiceError('conflict', model.obstacle, 'model_id');
  }

  /**
   * Into the draft, before the job is accepted. A lag counts from where the jobs before lead: with some of them open, only the run itself
   * can tell, so every step that it may come to is kept, and none is missed.
   */
  async #keepReferences(job: NewJob, { klPenalty }: RlConfig, draft: BlobDraft): Promise<void> {
    if (klPenalty === null) return;
    const { modelId } = job;
    const { repository, registry } = this.#options;
    const { reference } = klPenalty;
    const open = reference.kind === 'lag' ? await repository.countOpen(modelId) : 0;
    const latest = registry.checkpoint(modelId, null)?.step ?? 0;
    const last = referenceStep(reference, latest + open);
    if (last === null) return;
    for (let step = referenceStep(reference, latest) ?? 1; step <= last; step++) {
      const checkpoint = registry.checkpoint(modelId, step);
      const kept = checkpoint === null ? null : await keepReference(draft, checkpoint);
      if (kept === null && open === 0) {
        const loc = ['body', 'experimental_config', referenceField(reference)];
        throw invalid(loc, `The model has no checkpoint at step ${step}.`);
      }
      if (checkpoint === null || kept === null) continue;
      job.inputBytes += kept.copied;
      job.references.push({ checkpointId: checkpoint.id, bytes: kept.linked });
    }
  }

  /** `keep`: puts into the draft what a repeated request need not find any more, and adds it to the job. */
  async #accept(
    job: NewJob,
    repeatable: Repeatable | null,
    draft: BlobDraft,
    keep: (job: NewJob) => Promise<void> = () => Promise.resolve(),
  ): Promise<string> {
    const { repository, blobs, loop, quota, maxOpenJobs, log } = this.#options;
    const repeated = repeatable !== null && (await repository.findRepeated(job.entity, repeatable)) !== null;
    if (!repeated) {
      await keep(job);
      await quota.check(job.entity, job.inputBytes);
    }
    await draft.seal();
    const accepted = await repository.accept(job, repeatable, maxOpenJobs).catch((error: unknown) => {
      // Deleted since it was looked up.
      if ((error as { code?: unknown }).code === 'SQLITE_CONSTRAINT_FOREIGNKEY') throw notFound('model');
      throw error;
    });
    if (accepted.kind === 'full') {
      throw new ServiceError('queue_full', `The model has ${maxOpenJobs} jobs that have not ended; try again later.`);
    }
    if (accepted.kind !== 'new') {
      await removeUnnamed(blobs, [job.inputKey], log);
      return idOf(accepted);
    }
    loop.wake();
    return job.id;
  }
}

async function newJob(
  { id: modelId, entity }: RegisteredModel,
  kind: 'rl' | 'sft',
  config: unknown,
  draft: BlobDraft,
): Promise<NewJob> {
  const inputBytes = await folderBytes(draft.directory);
  const createdAt = new Date().toISOString();
  return {
    id: randomUUID(),
    modelId,
    entity,
    kind,
    config,
    inputKey: draft.key,
    inputBytes,
    references: [],
    createdAt,
  };
}

function idOf(repeated: Repeated): string {
  if (repeated.kind === 'existing') return repeated.id;
  throw invalid(['header', 'Idempotency-Key'], 'The key was used with another request body.');
}

function checkKey(key: string | null): void {
  if (key === null || (key.length <= MAX_KEY_LENGTH && /^[\x21-\x7e]+$/.test(key))) return;
  const message = `An idempotency key has 1 to ${MAX_KEY_LENGTH} printable ASCII characters without spaces.`;
  throw invalid(['header', 'Idempotency-Key'], message);
}

function toRepeatable(operation: string, key: string | null, digest: string): Repeatable | null {
  return key === null ? null : { operation, key, digest };
}

/** The body had no array under this name. */
export function missingGroups(fields: Record<string, unknown>): Error {
  const loc = ['body', GROUPS_KEY];
  return fields[GROUPS_KEY] === undefined
    ? invalid(loc, 'Field required', 'missing')
    : invalid(loc, 'Input should be a valid list', 'list_type');
}
