import type { Kysely, Migration } from 'kysely';

/** Which version an artifact gave way to when it was committed with that one's content, so that a repeated commit names it again. */
export const sameArtifact: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    await db.schema.alterTable('artifacts').addColumn('same_as', 'text').execute();
  },
};
