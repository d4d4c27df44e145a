import type { Kysely, Migration } from 'kysely';
import { sql } from 'kysely';

/** What is kept of responses. How many an entity has and what they take are a row that triggers keep, as for what it stores otherwise. */
export const responses: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('responses')
      .addColumn('sequence', 'integer', (column) => column.primaryKey().autoIncrement())
      .addColumn('entity', 'text', (column) => column.notNull())
      .addColumn('id', 'text', (column) => column.notNull())
      .addColumn('previous_id', 'text')
      .addColumn('bytes', 'integer', (column) => column.notNull())
      .addColumn('created_at', 'text', (column) => column.notNull())
      .addColumn('head', 'text', (column) => column.notNull())
      .addColumn('output', 'text', (column) => column.notNull())
      .addColumn('input', 'text', (column) => column.notNull())
      .addUniqueConstraint('responses_by_id', ['entity', 'id'])
      .execute();
    await db.schema.createIndex('responses_by_age').on('responses').columns(['entity', 'sequence', 'bytes']).execute();
    await db.schema
      .createTable('response_totals')
      .addColumn('entity', 'text', (column) => column.primaryKey())
      .addColumn('count', 'integer', (column) => column.notNull())
      .addColumn('bytes', 'integer', (column) => column.notNull())
      .execute();
    await keep(db, 'insert', 'new', '+');
    await keep(db, 'delete', 'old', '-');
  },
};

async function keep(db: Kysely<unknown>, event: string, row: string, sign: string): Promise<void> {
  const change = `on conflict do update set count = count ${sign} 1, bytes = bytes ${sign} ${row}.bytes`;
  const body = `insert into response_totals values (${row}.entity, 1, ${row}.bytes) ${change};`;
  await sql.raw(`create trigger responses_total_${event} after ${event} on responses begin ${body} end`).execute(db);
}
