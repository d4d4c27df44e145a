import type { Kysely, Migration } from 'kysely';
import { sql } from 'kysely';

/** For the oldest queued job of each model, whatever waits behind it. */
export const queuedJobs: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    await sql`create index queued_jobs on jobs (model_id) where state = 'queued'`.execute(db);
  },
};
