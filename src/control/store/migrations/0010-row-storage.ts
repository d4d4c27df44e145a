import type { Kysely, Migration } from 'kysely';
import { sql } from 'kysely';

/** Of a row besides its JSON: ids, times, what indices repeat of them. */
const ROW_BYTES = 512;

/** Rows that come without a bound of their own, and whose they are. `text`: the column that may be long. */
const ROWS = [
  { table: 'jobs', text: 'config', entity: (row: string) => `${row}.entity` },
  { table: 'job_events', text: 'data', entity: (row: string) => ownerOf('jobs', `${row}.job_id`) },
  { table: 'run_history', text: 'data', entity: (row: string) => ownerOf('models', `${row}.model_id`) },
  { table: 'trajectory_logs', text: 'metrics', entity: (row: string) => ownerOf('models', `${row}.model_id`) },
  { table: 'artifacts', text: 'metadata', entity: (row: string) => `${row}.entity` },
];

/**
 * What an entity's rows take in the database counts as its files do (0007): else events, history and artifacts without files would grow
 * without end. Checkpoints are in that already, and have so many metrics at most.
 */
export const rowStorage: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    for (const { table, text, entity } of ROWS) {
      const counted = `select ${entity(table)}, sum(${size(table, text)}) from ${table} where true group by 1`;
      await sql.raw(`insert into entity_storage ${counted} on conflict do update set ${ADDED}`).execute(db);
      await trigger(db, table, 'after insert', entity('new'), size('new', text));
    }
    const shrunk = `${size('new', 'metadata')} - ${size('old', 'metadata')}`;
    await trigger(db, 'artifacts', 'after update of metadata', 'new.entity', shrunk);
    await trigger(db, 'artifacts', 'after delete', 'old.entity', `- ${size('old', 'metadata')}`);
    await trigger(
      db,
      'trajectory_logs',
      'after delete',
      ownerOf('models', 'old.model_id'),
      `- ${size('old', 'metrics')}`,
    );
    // Events and history, of which there may be a million, go with their owner alone and are summed up before it does.
    const told = `${size('old', 'config')} + ${sum('job_events', 'job_id')}`;
    await trigger(db, 'jobs', 'before delete', 'old.entity', `- (${told})`);
    await trigger(db, 'models', 'before delete', 'old.entity', `- ${sum('run_history', 'model_id')}`);
  },
};

const ADDED = 'bytes = bytes + excluded.bytes';

function ownerOf(owner: string, id: string): string {
  return `(select entity from ${owner} where id = ${id})`;
}

function size(row: string, text: string): string {
  return `(octet_length(${row}.${text}) + ${ROW_BYTES})`;
}

/** Of the rows that the deleted one owns. */
function sum(table: string, key: string): string {
  return `(select coalesce(sum(${size(table, 'data')}), 0) from ${table} where ${key} = old.id)`;
}

async function trigger(
  db: Kysely<unknown>,
  table: string,
  event: string,
  entity: string,
  bytes: string,
): Promise<void> {
  const name = `${table}_rows_${event.split(' ')[1] ?? ''}`;
  const add = `insert into entity_storage values (${entity}, ${bytes}) on conflict do update set ${ADDED}`;
  await sql.raw(`create trigger ${name} ${event} on ${table} begin ${add}; end`).execute(db);
}
