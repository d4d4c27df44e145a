import type { Kysely, Migration } from 'kysely';

/** A reader of pages may have deleted the checkpoint that it goes on from. */
export const deletedCheckpoints: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('deleted_checkpoints')
      .addColumn('id', 'text', (column) => column.primaryKey())
      .addColumn('model_id', 'text', (column) => column.notNull().references('models.id').onDelete('cascade'))
      .addColumn('step', 'integer', (column) => column.notNull())
      .addColumn('deleted_at', 'text', (column) => column.notNull())
      .execute();
    await db.schema
      .createIndex('deleted_checkpoints_by_model')
      .on('deleted_checkpoints')
      .columns(['model_id'])
      .execute();
  },
};
