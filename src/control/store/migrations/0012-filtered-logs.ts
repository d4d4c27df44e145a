import type { Kysely, Migration } from 'kysely';

/** For pages of a model's logs of one split, of one step, and of both: who asks for what is not there reads none of the others. */
const WAYS = [['split'], ['step'], ['split', 'step']];

/** Each index ends with the row's `sequence`, by which pages are ordered. */
export const filteredLogs: Migration = {
  async up(db: Kysely<unknown>): Promise<void> {
    for (const way of WAYS) {
      const name = `trajectory_logs_by_${way.join('_')}`;
      await db.schema
        .createIndex(name)
        .on('trajectory_logs')
        .columns(['model_id', ...way])
        .execute();
    }
  },
};
