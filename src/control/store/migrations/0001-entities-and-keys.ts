import type { Kysely, Migration } from 'kysely';

export const entitiesAndKeys: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema
      .createTable('entities')
      .addColumn('name', 'text', (column) => column.primaryKey())
      .addColumn('created_at', 'text', (column) => column.notNull())
      .execute();
    await db.schema
      .createTable('api_keys')
      .addColumn('id', 'text', (column) => column.primaryKey())
      .addColumn('entity', 'text', (column) => column.notNull().references('entities.name'))
      .addColumn('name', 'text', (column) => column.notNull())
      .addColumn('hash', 'text', (column) => column.notNull().unique())
      .addColumn('created_at', 'text', (column) => column.notNull())
      .addColumn('revoked_at', 'text')
      .execute();
  },
};
