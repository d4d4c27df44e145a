/** SQL of models, their checkpoints and the checkpoints' metrics. */
import { sql, type Kysely, type Transaction } from 'kysely';
import { transition } from '../lifecycle.ts';
import { upsertMetrics } from './log-repository.ts';
import { finishRemovals, removeModel, type DeletedModel } from './model-removal.ts';
import type { ModelsTable, Tables } from './tables.ts';

export interface StoredModel {
  id: string;
  entity: string;
  project: string;
  name: string;
  baseModel: string;
  baseDigest: string;
  runId: string;
  lora: unknown;
  nextStep: number;
  createdAt: string;
}

export interface StoredCheckpoint {
  id: string;
  modelId: string;
  step: number;
  /** null: made with the model. */
  jobId: string | null;
  version: string;
  blobKey: string;
  bytes: number;
  createdAt: string;
}

export interface Page {
  /** Position behind which the page begins; null = at the start. */
  after: number | null;
  limit: number;
  order: 'asc' | 'desc';
}

/** A number and the marks around it. */
const NUMBER_BYTES = 20;

export class ModelRepository {
  readonly #db: Kysely<Tables>;

  constructor(db: Kysely<Tables>) {
    this.#db = db;
  }

  /** Throws SqliteError SQLITE_CONSTRAINT_UNIQUE where the name is taken. */
  async create(model: StoredModel, first: StoredCheckpoint): Promise<void> {
    await this.#db.transaction().execute(async (trx) => {
      await trx.insertInto('models').values(toRow(model)).execute();
      await insertCheckpoint(trx, first);
    });
  }

  /** Models in the order in which they were made, whatever the clock said. */
  async all(): Promise<{ models: StoredModel[]; checkpoints: StoredCheckpoint[] }> {
    const models = await this.#db
      .selectFrom('models')
      .selectAll()
      .orderBy(sql`rowid`)
      .execute();
    const checkpoints = await this.#db.selectFrom('checkpoints').selectAll().orderBy('step').execute();
    return { models: models.map(fromRow), checkpoints: checkpoints.map(fromCheckpointRow) };
  }

  async find(id: string): Promise<StoredModel | null> {
    const row = await this.#db.selectFrom('models').selectAll().where('id', '=', id).executeTakeFirst();
    return row === undefined ? null : fromRow(row);
  }

  /** Null: this entity has, and had, no such model. */
  remove(id: string, entity: string, at: string): Promise<DeletedModel | null> {
    return removeModel(this.#db, id, entity, at);
  }

  /** Of models that were being deleted when the server ended. Call before anything reads models. */
  finishRemovals(): Promise<void> {
    return finishRemovals(this.#db);
  }

  async checkpointPage(modelId: string, page: Page): Promise<StoredCheckpoint[]> {
    let query = this.#db.selectFrom('checkpoints').selectAll().where('model_id', '=', modelId);
    if (page.after !== null) query = query.where('step', page.order === 'asc' ? '>' : '<', page.after);
    const rows = await query.orderBy('step', page.order).limit(page.limit).execute();
    return rows.map(fromCheckpointRow);
  }

  /** The checkpoint that a job made, or null. */
  async ofJob(jobId: string): Promise<StoredCheckpoint | null> {
    const row = await this.#db.selectFrom('checkpoints').selectAll().where('job_id', '=', jobId).executeTakeFirst();
    return row === undefined ? null : fromCheckpointRow(row);
  }

  /**
   * The step of the checkpoint that a job made, where that has been deleted since; else null. `lastRow`: key of the job's last row of the
   * history, which has the number that its checkpoint was to get.
   */
  async deletedStepOf(modelId: string, jobId: string, lastRow: string): Promise<number | null> {
    const row = await this.#db
      .selectFrom('run_history')
      .innerJoin('models', 'models.id', 'run_history.model_id')
      .select('run_history.step')
      .where('models.id', '=', modelId)
      .where('run_history.key', '=', lastRow)
      .whereRef('run_history.step', '<', 'models.next_step')
      .where(({ not, exists, selectFrom }) =>
        not(exists(selectFrom('checkpoints').select('checkpoints.id').where('checkpoints.job_id', '=', jobId))),
      )
      .executeTakeFirst();
    return row?.step ?? null;
  }

  /** Lists a checkpoint under the model's next step. Null: the model has gone, or the job is to be cancelled. */
  async publish(checkpoint: Omit<StoredCheckpoint, 'step'>): Promise<StoredCheckpoint | null> {
    return this.#db.transaction().execute(async (trx) => {
      const model = await trx
        .selectFrom('models')
        .select('next_step')
        .where('id', '=', checkpoint.modelId)
        .executeTakeFirst();
      if (model === undefined || (await isCancelled(trx, checkpoint.jobId))) return null;
      const published = { ...checkpoint, step: model.next_step };
      await insertCheckpoint(trx, published);
      if (published.jobId !== null) await upsertMetrics(trx, published.id, await toldMetrics(trx, published));
      await trx
        .updateTable('models')
        .set({ next_step: model.next_step + 1 })
        .where('id', '=', checkpoint.modelId)
        .execute();
      return published;
    });
  }

  /** Also of one that was deleted lately: whoever reads pages may delete what they show. Null where the model had none of this id. */
  async stepOf(modelId: string, checkpointId: string): Promise<number | null> {
    const [row] = await this.#db
      .selectFrom('checkpoints')
      .select('step')
      .where('model_id', '=', modelId)
      .where('id', '=', checkpointId)
      .unionAll((db) =>
        db
          .selectFrom('deleted_checkpoints')
          .select('step')
          .where('model_id', '=', modelId)
          .where('id', '=', checkpointId),
      )
      .execute();
    return row?.step ?? null;
  }

  /** About what the metrics of each take as JSON; those without any are left out. */
  async metricBytes(checkpointIds: string[]): Promise<Map<string, number>> {
    if (checkpointIds.length === 0) return new Map();
    const rows = await this.#db
      .selectFrom('checkpoint_metrics')
      .select(['checkpoint_id', sql<number>`sum(octet_length(name) + ${NUMBER_BYTES})`.as('bytes')])
      .where('checkpoint_id', 'in', checkpointIds)
      .groupBy('checkpoint_id')
      .execute();
    return new Map(rows.map(({ checkpoint_id: id, bytes }) => [id, bytes]));
  }

  async metrics(checkpointIds: string[]): Promise<Map<string, Record<string, number>>> {
    const found = new Map<string, Record<string, number>>(checkpointIds.map((id) => [id, {}]));
    if (checkpointIds.length === 0) return found;
    const rows = await this.#db
      .selectFrom('checkpoint_metrics')
      .selectAll()
      .where('checkpoint_id', 'in', checkpointIds)
      .orderBy('name')
      .execute();
    for (const row of rows) {
      const metrics = found.get(row.checkpoint_id);
      if (metrics) setOwn(metrics, row.name, row.value);
    }
    return found;
  }

  /** The checkpoints that were there, now gone. */
  async removeCheckpoints(modelId: string, steps: number[]): Promise<StoredCheckpoint[]> {
    const gone: StoredCheckpoint[] = [];
    const now = new Date().toISOString();
    await this.#db.transaction().execute(async (trx) => {
      // A statement takes a bounded number of values.
      for (let from = 0; from < steps.length; from += 500) {
        const rows = await trx
          .deleteFrom('checkpoints')
          .where('model_id', '=', modelId)
          .where('step', 'in', steps.slice(from, from + 500))
          .returningAll()
          .execute();
        for (const row of rows) {
          transition('checkpoint', 'ready', 'delete');
          gone.push(fromCheckpointRow(row));
        }
        const deleted = rows.map(({ id, step }) => ({ id, model_id: modelId, step, deleted_at: now }));
        if (deleted.length > 0) await trx.insertInto('deleted_checkpoints').values(deleted).execute();
      }
    });
    return gone;
  }

  async forgetDeleted(before: string): Promise<void> {
    await this.#db.deleteFrom('deleted_models').where('deleted_at', '<', before).execute();
    await this.#db.deleteFrom('deleted_checkpoints').where('deleted_at', '<', before).execute();
  }

  /** Every blob that a row names. */
  async referencedBlobs(): Promise<Set<string>> {
    const db = this.#db;
    const keys = await Promise.all([
      db.selectFrom('checkpoints').select('blob_key as key').execute(),
      db.selectFrom('jobs').select('input_key as key').where('input_key', 'is not', null).execute(),
      db.selectFrom('jobs').select('snapshot_key as key').where('snapshot_key', 'is not', null).execute(),
      db.selectFrom('trajectory_logs').select('blob_key as key').execute(),
      db.selectFrom('artifact_files').select('blob_key as key').execute(),
    ]);
    return new Set(keys.flat().flatMap(({ key }) => (key === null ? [] : [key])));
  }
}

async function isCancelled(trx: Transaction<Tables>, jobId: string | null): Promise<boolean> {
  if (jobId === null) return false;
  const job = await trx.selectFrom('jobs').select('cancel_requested').where('id', '=', jobId).executeTakeFirst();
  return (job?.cancel_requested ?? 0) !== 0;
}

async function insertCheckpoint(trx: Transaction<Tables>, checkpoint: StoredCheckpoint): Promise<void> {
  transition('checkpoint', 'unpublished', 'publish');
  await trx
    .insertInto('checkpoints')
    .values({
      id: checkpoint.id,
      model_id: checkpoint.modelId,
      step: checkpoint.step,
      job_id: checkpoint.jobId,
      version: checkpoint.version,
      blob_key: checkpoint.blobKey,
      bytes: checkpoint.bytes,
      created_at: checkpoint.createdAt,
    })
    .execute();
}

/** What its job told of the step before the step was there; the last of a name counts. */
async function toldMetrics(
  trx: Transaction<Tables>,
  { modelId, step, jobId }: StoredCheckpoint,
): Promise<Record<string, number>> {
  const rows = await trx
    .selectFrom('run_history')
    .select('data')
    .where('model_id', '=', modelId)
    // Keys that begin with `jobId/`, as a range, which an index answers: `0` comes behind `/`.
    .where('key', '>=', `${jobId}/`)
    .where('key', '<', `${jobId}0`)
    .where('step', '=', step)
    .orderBy('sequence')
    .execute();
  return Object.fromEntries(rows.flatMap(({ data }) => Object.entries(JSON.parse(data) as Record<string, number>)));
}

function toRow(model: StoredModel): ModelsTable {
  return {
    id: model.id,
    entity: model.entity,
    project: model.project,
    name: model.name,
    base_model: model.baseModel,
    base_digest: model.baseDigest,
    run_id: model.runId,
    lora: JSON.stringify(model.lora),
    next_step: model.nextStep,
    created_at: model.createdAt,
  };
}

function fromRow(row: ModelsTable): StoredModel {
  return {
    id: row.id,
    entity: row.entity,
    project: row.project,
    name: row.name,
    baseModel: row.base_model,
    baseDigest: row.base_digest,
    runId: row.run_id,
    lora: JSON.parse(row.lora) as unknown,
    nextStep: row.next_step,
    createdAt: row.created_at,
  };
}

function fromCheckpointRow(row: Tables['checkpoints']): StoredCheckpoint {
  return {
    id: row.id,
    modelId: row.model_id,
    step: row.step,
    jobId: row.job_id,
    version: row.version,
    blobKey: row.blob_key,
    bytes: row.bytes,
    createdAt: row.created_at,
  };
}

/** Names come from clients: `__proto__` is a name like any other. */
function setOwn(target: Record<string, number>, name: string, value: number): void {
  Object.defineProperty(target, name, { value, enumerable: true, writable: true, configurable: true });
}
