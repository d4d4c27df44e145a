import type { Kysely, Migration } from 'kysely';

/** What a job's input takes of its entity's quota, and how a damaged snapshot is told. */
export const storage: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .alterTable('jobs')
      .addColumn('input_bytes', 'integer', (column) => column.notNull().defaultTo(0))
      .execute();
    await db.schema.alterTable('jobs').addColumn('snapshot_sha256', 'text').execute();
  },
};
