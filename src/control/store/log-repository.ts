/** SQL of logged trajectories and of a run's metric history. */
import { randomUUID } from 'node:crypto';
import { sql, type Kysely, type Selectable, type Transaction } from 'kysely';
import { readPage, type RowPage } from './row-page.ts';
import type { RunHistoryTable, Tables, TrajectoryLogsTable } from './tables.ts';

export interface StoredLog {
  id: string;
  modelId: string;
  split: string;
  step: number;
  groups: number;
  trajectories: number;
  metrics: Record<string, number>;
  blobKey: string;
  bytes: number;
  createdAt: string;
}

/** A checkpoint's metrics come with every list of checkpoints: a client's must not grow without end. */
const MAX_CHECKPOINT_METRICS = 2_000;

/** The checkpoint would have too many metrics. Nothing was written. */
export class TooManyMetricsError extends Error {
  constructor() {
    super(`A checkpoint may have ${MAX_CHECKPOINT_METRICS} metrics.`);
    this.name = 'TooManyMetricsError';
  }
}

export interface HistoryRow {
  id: string;
  key: string;
  step: number;
  metrics: Record<string, number>;
  createdAt: string;
}

export class LogRepository {
  readonly #db: Kysely<Tables>;

  constructor(db: Kysely<Tables>) {
    this.#db = db;
  }

  /**
   * The log, its row of the run, and the checkpoint's metrics (the last write of a name wins) together. Throws TooManyMetricsError.
   */
  async insert(log: StoredLog, checkpointId: string | null): Promise<void> {
    await this.#db.transaction().execute(async (trx) => {
      await trx
        .insertInto('trajectory_logs')
        .values({
          id: log.id,
          model_id: log.modelId,
          split: log.split,
          step: log.step,
          groups: log.groups,
          trajectories: log.trajectories,
          metrics: JSON.stringify(log.metrics),
          blob_key: log.blobKey,
          bytes: log.bytes,
          created_at: log.createdAt,
        })
        .execute();
      await insertHistory(trx, log.modelId, `log-${log.id}`, log.step, log.metrics, log.createdAt);
      if (checkpointId === null) return;
      await upsertMetrics(trx, checkpointId, log.metrics);
      if ((await countMetrics(trx, checkpointId)) > MAX_CHECKPOINT_METRICS) throw new TooManyMetricsError();
    });
  }

  /** Idempotent by key. False where the model has gone or the row was there. */
  async record(
    modelId: string,
    key: string,
    step: number,
    metrics: Record<string, number>,
    checkpointId: string | null,
  ): Promise<boolean> {
    return this.#db.transaction().execute(async (trx) => {
      const model = await trx.selectFrom('models').select('id').where('id', '=', modelId).executeTakeFirst();
      if (model === undefined) return false;
      const known = await trx
        .selectFrom('run_history')
        .select('id')
        .where('model_id', '=', modelId)
        .where('key', '=', key)
        .executeTakeFirst();
      if (known !== undefined) return false;
      await insertHistory(trx, modelId, key, step, metrics, new Date().toISOString());
      if (checkpointId !== null) await upsertMetrics(trx, checkpointId, metrics);
      return true;
    });
  }

  /** Logs behind `after` (an id), oldest first; null where there is no such id. */
  async page(
    modelId: string,
    after: string | null,
    limit: number,
    filter: { split: string | null; step: number | null },
  ): Promise<RowPage<StoredLog> | null> {
    const from = after === null ? 0 : await this.#sequenceOf('trajectory_logs', modelId, after);
    if (from === null) return null;
    let query = this.#db.selectFrom('trajectory_logs').where('model_id', '=', modelId).where('sequence', '>', from);
    if (filter.split !== null) query = query.where('split', '=', filter.split);
    if (filter.step !== null) query = query.where('step', '=', filter.step);
    const ordered = query.orderBy('sequence');
    const size = sql<number>`octet_length(metrics)`.as('bytes');
    const sizesOf = (most: number) => ordered.select(size).limit(most).execute();
    return readPage(limit, sizesOf, async (most) => {
      const rows = await ordered.selectAll().limit(most).execute();
      return rows.map(fromLogRow);
    });
  }

  async find(modelId: string, id: string): Promise<StoredLog | null> {
    const row = await this.#db
      .selectFrom('trajectory_logs')
      .selectAll()
      .where('model_id', '=', modelId)
      .where('id', '=', id)
      .executeTakeFirst();
    return row === undefined ? null : fromLogRow(row);
  }

  /** Rows of the run behind `after`, oldest first; null where there is no such id. */
  async history(modelId: string, after: string | null, limit: number): Promise<RowPage<HistoryRow> | null> {
    const from = after === null ? 0 : await this.#sequenceOf('run_history', modelId, after);
    if (from === null) return null;
    const ordered = this.#db
      .selectFrom('run_history')
      .where('model_id', '=', modelId)
      .where('sequence', '>', from)
      .orderBy('sequence');
    const size = sql<number>`octet_length(data)`.as('bytes');
    const sizesOf = (most: number) => ordered.select(size).limit(most).execute();
    return readPage(limit, sizesOf, async (most) => {
      const rows = await ordered.selectAll().limit(most).execute();
      return rows.map(fromHistoryRow);
    });
  }

  async #sequenceOf(table: 'trajectory_logs' | 'run_history', modelId: string, id: string): Promise<number | null> {
    const row = await this.#db
      .selectFrom(table)
      .select('sequence')
      .where('model_id', '=', modelId)
      .where('id', '=', id)
      .executeTakeFirst();
    return row?.sequence ?? null;
  }
}

async function insertHistory(
  trx: Transaction<Tables>,
  modelId: string,
  key: string,
  step: number,
  metrics: Record<string, number>,
  at: string,
): Promise<void> {
  const row = { id: randomUUID(), model_id: modelId, key, step, data: JSON.stringify(metrics), created_at: at };
  await trx.insertInto('run_history').values(row).execute();
}

async function countMetrics(trx: Transaction<Tables>, checkpointId: string): Promise<number> {
  const { count } = await trx
    .selectFrom('checkpoint_metrics')
    .select(({ fn }) => fn.countAll<number>().as('count'))
    .where('checkpoint_id', '=', checkpointId)
    .executeTakeFirstOrThrow();
  return count;
}

export async function upsertMetrics(
  trx: Transaction<Tables>,
  checkpointId: string,
  metrics: Record<string, number>,
): Promise<void> {
  const there = await trx.selectFrom('checkpoints').select('id').where('id', '=', checkpointId).executeTakeFirst();
  if (there === undefined) return;
  const rows = Object.entries(metrics).map(([name, value]) => ({ checkpoint_id: checkpointId, name, value }));
  // A statement takes a bounded number of values.
  for (let from = 0; from < rows.length; from += 200) {
    await trx
      .insertInto('checkpoint_metrics')
      .values(rows.slice(from, from + 200))
      .onConflict((conflict) =>
        conflict.columns(['checkpoint_id', 'name']).doUpdateSet((eb) => ({ value: eb.ref('excluded.value') })),
      )
      .execute();
  }
}

function fromLogRow(row: Selectable<TrajectoryLogsTable>): StoredLog {
  return {
    id: row.id,
    modelId: row.model_id,
    split: row.split,
    step: row.step,
    groups: row.groups,
    trajectories: row.trajectories,
    metrics: JSON.parse(row.metrics) as Record<string, number>,
    blobKey: row.blob_key,
    bytes: row.bytes,
    createdAt: row.created_at,
  };
}

function fromHistoryRow(row: Selectable<RunHistoryTable>): HistoryRow {
  return {
    id: row.id,
    key: row.key,
    step: row.step,
    metrics: JSON.parse(row.data) as Record<string, number>,
    createdAt: row.created_at,
  };
}
