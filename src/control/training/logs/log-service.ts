/** Trajectories that clients log for a model: stored, measured, readable back; and the model's metric history. */
import { randomUUID } from 'node:crypto';
import { stat } from 'node:fs/promises';
import { invalid } from '../../../schemas/validation-error.ts';
import { validateLogFields } from '../../../schemas/preview/log.ts';
import { canonicalUuid } from '../../../schemas/preview/uuid.ts';
import { folderBytes } from '../../store/blob-store.ts';
import {
  TooManyMetricsError,
  type HistoryRow,
  type LogRepository,
  type StoredLog,
} from '../../store/log-repository.ts';
import type { RowPage } from '../../store/row-page.ts';
import type { TrainingInputs } from '../intake/inputs.ts';
import { GROUPS_KEY } from '../intake/read-trajectories.ts';
import { missingGroups } from '../jobs/job-service.ts';
import { logMetrics } from '../log-metrics.ts';
import type { ModelService } from '../models/model-service.ts';
import type { ModelRegistry } from '../models/registry.ts';
import { notFound, ServiceError } from '../service-error.ts';
import type { StorageQuota } from '../storage-quota.ts';
import { lost } from '../stored-file.ts';

export interface LogServiceOptions {
  repository: LogRepository;
  registry: ModelRegistry;
  models: ModelService;
  inputs: TrainingInputs;
  quota: StorageQuota;
}

/** Without its place in the store. */
export type LogView = Omit<StoredLog, 'blobKey' | 'modelId'>;

export class LogService {
  readonly #options: LogServiceOptions;

  constructor(options: LogServiceOptions) {
    this.#options = options;
  }

  /** `source`: the body. Attributed to the model's newest checkpoint, whose metrics it sets. */
  async log(modelId: string, entity: string, source: AsyncIterable<Uint8Array>): Promise<LogView> {
    const { repository, registry, models, inputs, quota } = this.#options;
    models.require(modelId, entity);
    await quota.check(entity);
    const { draft, read } = await inputs.receiveLog(entity, source);
    try {
      const fields = validateLogFields(read.fields);
      if (read.groups === null) throw missingGroups(read.fields);
      if (fields.model_id !== undefined && canonicalUuid(fields.model_id) !== modelId) {
        throw invalid(['body', 'model_id'], 'It is not the model of the path.');
      }
      const bytes = await folderBytes(draft.directory);
      await quota.check(entity, bytes);
      const checkpoint = registry.checkpoint(modelId, null);
      const step = checkpoint?.step ?? 0;
      const log: StoredLog = {
        id: randomUUID(),
        modelId,
        split: fields.split,
        step,
        groups: read.groups,
        trajectories: read.trajectories,
        metrics: logMetrics(fields.split, step, read.measures),
        blobKey: draft.key,
        bytes,
        createdAt: new Date().toISOString(),
      };
      await draft.seal();
      await repository.insert(log, checkpoint?.id ?? null);
      return log;
    } catch (error) {
      await draft.discard();
      if ((error as { code?: unknown }).code === 'SQLITE_CONSTRAINT_FOREIGNKEY') throw notFound('model');
      if (error instanceof TooManyMetricsError) throw new ServiceError('conflict', error.message, GROUPS_KEY);
      throw error;
    }
  }

  async page(
    modelId: string,
    entity: string,
    query: { after: string | null; limit: number; split: string | null; step: number | null },
  ): Promise<RowPage<LogView>> {
    this.#options.models.require(modelId, entity);
    const { split, step } = query;
    const found = await this.#options.repository.page(modelId, query.after, query.limit, { split, step });
    if (found === null) throw invalid(['query', 'after'], 'There is no such log.');
    return found;
  }

  async find(modelId: string, entity: string, logId: string): Promise<{ log: LogView; groups: AsyncIterable<Buffer> }> {
    const { repository, models, inputs } = this.#options;
    models.require(modelId, entity);
    const log = await repository.find(modelId, logId);
    if (log === null) throw notFound('log');
    await stat(inputs.file(log.blobKey)).catch((error: unknown) => {
      // Its model may have been deleted meanwhile.
      models.require(modelId, entity);
      throw lost(error);
    });
    return { log, groups: inputs.content(log.blobKey) };
  }

  async history(runId: string, entity: string, after: string | null, limit: number): Promise<RowPage<HistoryRow>> {
    const model = this.#options.registry.ofRun(runId, entity);
    if (model === null) throw notFound('run');
    const rows = await this.#options.repository.history(model.id, after, limit);
    if (rows === null) throw invalid(['query', 'after'], 'There is no such row.');
    return rows;
  }
}
