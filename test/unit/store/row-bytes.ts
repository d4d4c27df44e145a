/** What entities store, by the rows themselves. */
import { sql, type Kysely } from 'kysely';
import type { Tables } from '../../../src/control/store/tables.ts';

/** Besides its JSON or key, which counts in bytes of UTF-8. */
const ROW_BYTES = 512;

const row = (text: string) => `length(cast(${text} as blob)) + ${ROW_BYTES}`;

/** One row for each of theirs: `entity` and `bytes`. */
const COUNTED_ROWS = [
  [row('metrics'), 'trajectory_logs join models on models.id = model_id'],
  [row('data'), 'run_history join models on models.id = model_id'],
  [row('data'), 'job_events join jobs on jobs.id = job_id'],
  [row('config'), 'jobs'],
  [row('metadata'), 'artifacts'],
  [row(`''`), 'artifact_files join artifacts on artifacts.id = artifact_id'],
  [row(`''`), 'deleted_models'],
  [row('key'), 'idempotency_keys'],
].map(([bytes, rows]) => `select entity, ${bytes} bytes from ${rows}`);

const FILES = [
  'checkpoints join models on models.id = model_id',
  'trajectory_logs join models on models.id = model_id',
  'artifact_files join artifacts on artifacts.id = artifact_id',
].map((rows) => `select entity, bytes from ${rows}`);

/** Files and rows, by entity: what the triggers' sums are to be. */
export async function storedBytes(db: Kysely<Tables>): Promise<Map<string, number>> {
  const all = sql.raw([...FILES, ...COUNTED_ROWS].join(' union all '));
  const { rows } = await sql<{ entity: string; bytes: number }>`select entity, sum(bytes) bytes from (${all})
    group by 1`.execute(db);
  return new Map(rows.map(({ entity, bytes }) => [entity, bytes]));
}

/** Of one entity's rows alone. */
export async function rowBytes(db: Kysely<Tables>, entity: string): Promise<number> {
  const all = sql.raw(COUNTED_ROWS.join(' union all '));
  const { rows } = await sql<{ bytes: number }>`select sum(bytes) bytes from (${all}) where entity = ${entity}`.execute(
    db,
  );
  return rows[0]?.bytes ?? 0;
}
