import type { Kysely, Migration } from 'kysely';
import { sql } from 'kysely';

/** What is asked for every request is answered from these alone, however many jobs have ended and whatever else lies in the rows. */
export const growingTables: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    const open = sql<boolean>`ended_at is null`;
    await db.schema.createIndex('open_jobs_by_model').on('jobs').columns(['model_id']).where(open).execute();
    await db.schema
      .createIndex('open_jobs_by_entity')
      .on('jobs')
      .columns(['entity', 'input_bytes'])
      .where(open)
      .execute();
    await db.schema.createIndex('checkpoint_bytes').on('checkpoints').columns(['model_id', 'bytes']).execute();
    await db.schema.createIndex('log_bytes').on('trajectory_logs').columns(['model_id', 'bytes']).execute();
  },
};
