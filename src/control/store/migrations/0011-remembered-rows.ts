import type { Kysely, Migration } from 'kysely';
import { sql } from 'kysely';

/** Of a row besides its text, as in 0010. */
const ROW_BYTES = 512;

/** Rows that outlive what they are of, or of which one counted row may have many, and whose they are. */
const ROWS = [
  { table: 'artifact_files', bytes: () => `${ROW_BYTES}`, entity: ownerOfFile },
  { table: 'deleted_models', bytes: () => `${ROW_BYTES}`, entity: ownEntity },
  {
    table: 'idempotency_keys',
    bytes: (row: string) => `(octet_length(${row}.key) + ${ROW_BYTES})`,
    entity: ownEntity,
  },
];

/**
 * Who makes and deletes models, or jobs with keys, again and again keeps rows of them for a month: these count as others do (0010). Deleted
 * checkpoints need not: the jobs that made them count for as long.
 */
export const rememberedRows: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    for (const { table, bytes, entity } of ROWS) {
      const counted = `select ${entity(table)}, sum(${bytes(table)}) from ${table} where true group by 1`;
      await sql.raw(`insert into entity_storage ${counted} on conflict do update set ${ADDED}`).execute(db);
      await trigger(db, table, 'insert', entity('new'), bytes('new'));
      await trigger(db, table, 'delete', entity('old'), `- ${bytes('old')}`);
    }
    // How many are open is asked for each new one, and pages are read: neither is to look at all that were deleted.
    await sql`create index open_artifacts on artifacts (entity) where state = 'open'`.execute(db);
    await sql`create index present_artifacts on artifacts (entity, sequence) where state != 'deleted'`.execute(db);
  },
};

const ADDED = 'bytes = bytes + excluded.bytes';

function ownEntity(row: string): string {
  return `${row}.entity`;
}

function ownerOfFile(row: string): string {
  return `(select entity from artifacts where id = ${row}.artifact_id)`;
}

async function trigger(
  db: Kysely<unknown>,
  table: string,
  event: 'insert' | 'delete',
  entity: string,
  bytes: string,
): Promise<void> {
  const add = `insert into entity_storage values (${entity}, ${bytes}) on conflict do update set ${ADDED}`;
  await sql.raw(`create trigger ${table}_rows_${event} after ${event} on ${table} begin ${add}; end`).execute(db);
}
