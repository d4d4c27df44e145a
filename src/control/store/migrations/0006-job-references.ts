import type { Kysely, Migration } from 'kysely';

/** Checkpoints whose files a job shares while it lasts, so that an entity's storage counts them once. */
export const jobReferences: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('job_references')
      .addColumn('job_id', 'text', (column) => column.notNull().references('jobs.id').onDelete('cascade'))
      .addColumn('checkpoint_id', 'text', (column) => column.notNull())
      .addColumn('bytes', 'integer', (column) => column.notNull())
      .addPrimaryKeyConstraint('job_references_key', ['job_id', 'checkpoint_id'])
      .execute();
  },
};
