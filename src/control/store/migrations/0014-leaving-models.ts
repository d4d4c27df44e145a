import type { Kysely, Migration } from 'kysely';

/** Models whose rows are being deleted piece by piece. */
export const leavingModels: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('leaving_models')
      .addColumn('model_id', 'text', (column) => column.primaryKey().references('models.id').onDelete('cascade'))
      .addColumn('deleted_at', 'text', (column) => column.notNull())
      .execute();
  },
};
