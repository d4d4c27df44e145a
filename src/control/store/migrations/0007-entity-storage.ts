import type { Kysely, Migration } from 'kysely';
import { sql } from 'kysely';

/** Rows that hold bytes, and the rows that say whose these are. */
const HELD = [
  { table: 'checkpoints', key: 'model_id', owner: 'models' },
  { table: 'trajectory_logs', key: 'model_id', owner: 'models' },
  { table: 'artifact_files', key: 'artifact_id', owner: 'artifacts' },
];

/**
 * What an entity's rows sum up to is a row of its own. Triggers keep it: they are part of the statement that changes what is summed, so that
 * the two are on the disk together or not at all.
 */
export const entityStorage: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('entity_storage')
      .addColumn('entity', 'text', (column) => column.primaryKey())
      .addColumn('bytes', 'integer', (column) => column.notNull())
      .execute();
    await count(db);
    for (const { table, key, owner } of HELD) {
      await change(db, table, 'insert', `(select entity from ${owner} where id = new.${key})`, 'new.bytes');
      await change(db, table, 'delete', `(select entity from ${owner} where id = old.${key})`, '-old.bytes');
    }
    for (const owner of ['models', 'artifacts']) await deleteHeld(db, owner);
    // They answered what is kept now.
    await db.schema.dropIndex('checkpoint_bytes').execute();
    await db.schema.dropIndex('log_bytes').execute();
  },
};

async function count(db: Kysely<unknown>): Promise<void> {
  const held = HELD.map(
    ({ table, key, owner }) =>
      `select ${owner}.entity, ${table}.bytes from ${table} join ${owner} on ${owner}.id = ${table}.${key}`,
  );
  const rows = held.join(' union all ');
  await sql.raw(`insert into entity_storage select entity, sum(bytes) from (${rows}) group by entity`).execute(db);
}

async function change(
  db: Kysely<unknown>,
  table: string,
  event: 'insert' | 'delete',
  entity: string,
  bytes: string,
): Promise<void> {
  const add = `insert into entity_storage values (${entity}, ${bytes}) on conflict do update set bytes = bytes + ${bytes}`;
  await sql.raw(`create trigger ${table}_storage_${event} after ${event} on ${table} begin ${add}; end`).execute(db);
}

/** Before their owner goes, while it still says whose they are: rows that a cascade deletes have no owner any more. */
async function deleteHeld(db: Kysely<unknown>, owner: string): Promise<void> {
  const deletes = HELD.filter((held) => held.owner === owner).map(
    ({ table, key }) => `delete from ${table} where ${key} = old.id;`,
  );
  const body = deletes.join(' ');
  await sql.raw(`create trigger ${owner}_storage_delete before delete on ${owner} begin ${body} end`).execute(db);
}
