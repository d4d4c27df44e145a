/** How much of the disk an entity's data take, in files and in the database. */
import type { Kysely } from 'kysely';
import type { Tables } from './tables.ts';

export class StorageRepository {
  readonly #db: Kysely<Tables>;

  constructor(db: Kysely<Tables>) {
    this.#db = db;
  }

  /**
   * Bytes of the entity's checkpoints, logs and artifacts, of the rows of these, of its jobs, their events and the history of its runs, of
   * what is remembered of deleted models and of idempotency keys, and of inputs of jobs that have not ended; what is linked counts once.
   */
  async usedBytes(entity: string): Promise<number> {
    const db = this.#db;
    const sums = await Promise.all([
      db.selectFrom('entity_storage').select('bytes').where('entity', '=', entity).executeTakeFirst(),
      db
        .selectFrom('jobs')
        .select(({ fn }) => fn.sum<number | null>('input_bytes').as('bytes'))
        .where('entity', '=', entity)
        .where('ended_at', 'is', null)
        .executeTakeFirst(),
      this.#deletedReferences(entity),
    ]);
    return sums.reduce((total, sum) => total + (sum?.bytes ?? 0), 0);
  }

  /** Of checkpoints that are deleted and whose files stay for jobs that compare with them. */
  #deletedReferences(entity: string): Promise<{ bytes: number | null } | undefined> {
    const kept = this.#db
      .selectFrom('job_references')
      .innerJoin('jobs', 'jobs.id', 'job_references.job_id')
      .leftJoin('checkpoints', 'checkpoints.id', 'job_references.checkpoint_id')
      .select(['job_references.checkpoint_id', 'job_references.bytes'])
      .distinct()
      .where('jobs.entity', '=', entity)
      .where('jobs.ended_at', 'is', null)
      .where('checkpoints.id', 'is', null);
    return this.#db
      .selectFrom(kept.as('kept'))
      .select(({ fn }) => fn.sum<number | null>('kept.bytes').as('bytes'))
      .executeTakeFirst();
  }
}
