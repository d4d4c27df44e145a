/**
 * Deleting a model with all that is stored of it. A run's events and history may be hundreds of thousands of rows, and one transaction of them
 * all would keep everybody's requests from the database for seconds: these go piece by piece before the rest. What has begun cannot be
 * taken back: where the server ended, or the disk was full, it goes on with the next delete or at the next start.
 */
import { sql, type Kysely, type Transaction } from 'kysely';
import { transition } from '../lifecycle.ts';
import type { Tables } from './tables.ts';

export interface DeletedModel {
  deletedCheckpoints: number;
  /** Of their files. */
  checkpointBytes: number;
  /** Blobs that no row names any more. */
  blobs: string[];
  /** False where the answer is that of an earlier delete. */
  first: boolean;
}

/** Rows of a piece, which takes about 25 ms. */
const PIECE = 2000;

/** Of a row besides its JSON, as the triggers of migration 0010 count it. */
const ROW_BYTES = 512;

/** Null: this entity has, and had, no such model. */
export async function removeModel(
  db: Kysely<Tables>,
  id: string,
  entity: string,
  at: string,
): Promise<DeletedModel | null> {
  if (await beginRemoval(db, id, entity, at)) {
    while (await removePiece(db, id, entity));
  }
  return db.transaction().execute((trx) => removeRest(trx, id, entity, at));
}

/** Removes what was being removed. Call before anything reads models. */
export async function finishRemovals(db: Kysely<Tables>): Promise<void> {
  const rows = await db
    .selectFrom('leaving_models')
    .innerJoin('models', 'models.id', 'leaving_models.model_id')
    .select(['models.id', 'models.entity', 'leaving_models.deleted_at'])
    .execute();
  for (const { id, entity, deleted_at: at } of rows) await removeModel(db, id, entity, at);
}

/** Keeps that the model is leaving, where it is this entity's and has more rows than one piece. */
async function beginRemoval(db: Kysely<Tables>, id: string, entity: string, at: string): Promise<boolean> {
  const { numInsertedOrUpdatedRows } = await db
    .insertInto('leaving_models')
    .columns(['model_id', 'deleted_at'])
    .expression(
      db
        .selectFrom('models')
        .select(['id', sql<string>`${at}`.as('deleted_at')])
        .where('id', '=', id)
        .where('entity', '=', entity)
        .where(sql<number>`(select count(*) from (${manyRows(id)}))`, '>', PIECE),
    )
    .onConflict((conflict) => conflict.doUpdateSet({ model_id: id }))
    .executeTakeFirstOrThrow();
  return (numInsertedOrUpdatedRows ?? 0n) > 0n;
}

/** Up to PIECE + 1 of the rows that go by pieces. */
function manyRows(id: string) {
  return sql`select 1 from job_events join jobs on jobs.id = job_events.job_id where jobs.model_id = ${id}
    union all select 1 from run_history where model_id = ${id} limit ${sql.lit(PIECE + 1)}`;
}

/** False: nothing is left for another piece. */
async function removePiece(db: Kysely<Tables>, id: string, entity: string): Promise<boolean> {
  return db.transaction().execute(async (trx) => {
    const events = await sql<{ bytes: number }>`delete from job_events where rowid in (
      select job_events.rowid from job_events join jobs on jobs.id = job_events.job_id where jobs.model_id = ${id} limit ${sql.lit(PIECE)}
    ) returning octet_length(data) + ${sql.lit(ROW_BYTES)} as bytes`.execute(trx);
    const left = PIECE - events.rows.length;
    const history = await sql<{ bytes: number }>`delete from run_history where rowid in (
      select rowid from run_history where model_id = ${id} limit ${sql.lit(left)}
    ) returning octet_length(data) + ${sql.lit(ROW_BYTES)} as bytes`.execute(trx);
    const rows = [...events.rows, ...history.rows];
    const bytes = rows.reduce((sum, row) => sum + row.bytes, 0);
    await trx
      .updateTable('entity_storage')
      .set(({ eb }) => ({ bytes: eb('bytes', '-', bytes) }))
      .where('entity', '=', entity)
      .execute();
    return rows.length === PIECE;
  });
}

async function removeRest(
  trx: Transaction<Tables>,
  id: string,
  entity: string,
  at: string,
): Promise<DeletedModel | null> {
  const model = await trx
    .selectFrom('models')
    .select('id')
    .where('id', '=', id)
    .where('entity', '=', entity)
    .executeTakeFirst();
  if (model === undefined) return deletedBefore(trx, id, entity);
  transition('model', 'active', 'delete');
  const blobs = await blobsOfModel(trx, id);
  const { checkpoints, bytes } = await trx
    .selectFrom('checkpoints')
    .select(({ fn }) => [
      fn.countAll<number>().as('checkpoints'),
      fn.coalesce(fn.sum<number>('bytes'), sql.lit(0)).as('bytes'),
    ])
    .where('model_id', '=', id)
    .executeTakeFirstOrThrow();
  const row = { id, entity, deleted_checkpoints: checkpoints, deleted_at: at };
  await trx.insertInto('deleted_models').values(row).execute();
  await trx.deleteFrom('models').where('id', '=', id).execute();
  return { deletedCheckpoints: checkpoints, checkpointBytes: bytes, blobs, first: true };
}

async function deletedBefore(trx: Transaction<Tables>, id: string, entity: string): Promise<DeletedModel | null> {
  const row = await trx
    .selectFrom('deleted_models')
    .select('deleted_checkpoints')
    .where('id', '=', id)
    .where('entity', '=', entity)
    .executeTakeFirst();
  if (row === undefined) return null;
  return { deletedCheckpoints: row.deleted_checkpoints, checkpointBytes: 0, blobs: [], first: false };
}

async function blobsOfModel(trx: Transaction<Tables>, id: string): Promise<string[]> {
  const checkpoints = await trx.selectFrom('checkpoints').select('blob_key').where('model_id', '=', id).execute();
  const logs = await trx.selectFrom('trajectory_logs').select('blob_key').where('model_id', '=', id).execute();
  const jobs = await trx.selectFrom('jobs').select(['input_key', 'snapshot_key']).where('model_id', '=', id).execute();
  const keys = [
    ...checkpoints.map((row) => row.blob_key),
    ...logs.map((row) => row.blob_key),
    ...jobs.flatMap((row) => [row.input_key, row.snapshot_key]),
  ];
  return keys.filter((key) => key !== null);
}
