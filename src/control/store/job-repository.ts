/** SQL of training jobs and their events. A state changes with its event in one transaction, through the lifecycle's table. */
import { randomUUID } from 'node:crypto';
import { sql, type Kysely, type Selectable, type Transaction } from 'kysely';
import { transition, TransitionError, type JobState } from '../lifecycle.ts';
import type { JobEventsTable, JobsTable, Tables } from './tables.ts';

export interface StoredJob {
  id: string;
  modelId: string;
  entity: string;
  kind: 'rl' | 'sft';
  state: JobState;
  config: unknown;
  inputKey: string | null;
  attempts: number;
  cancelRequested: boolean;
  snapshotKey: string | null;
  snapshotSha256: string | null;
  errorMessage: string | null;
  createdAt: string;
  startedAt: string | null;
  endedAt: string | null;
}

/** What most ask for: a config may have a list of a million numbers. */
export type JobRecord = Omit<StoredJob, 'config'>;

export interface StoredEvent {
  id: string;
  /** 0 for the first event of a job, without gaps. */
  sequence: number;
  type: string;
  data: Record<string, unknown>;
}

export interface NewJob {
  id: string;
  modelId: string;
  entity: string;
  kind: 'rl' | 'sft';
  config: unknown;
  inputKey: string;
  inputBytes: number;
  /** Checkpoints whose files the input has links to. */
  references: { checkpointId: string; bytes: number }[];
  createdAt: string;
}

/** An Idempotency-Key with the digest of the body that it came with. */
export interface Repeatable {
  operation: string;
  key: string;
  digest: string;
}

/** `existing`: the job that an earlier request with the same key made. `other`: the key was used with another body. */
export type Repeated = { kind: 'existing'; id: string } | { kind: 'other' };
/** `full`: the model has as many open jobs as it may. */
export type Accepted = { kind: 'new' } | { kind: 'full' } | Repeated;

export interface NewEvent {
  key: string;
  type: string;
  data: Record<string, unknown>;
  at: string;
}

const RECORD = [
  'id',
  'model_id',
  'entity',
  'kind',
  'state',
  'input_key',
  'attempts',
  'cancel_requested',
  'snapshot_key',
  'snapshot_sha256',
  'error_message',
  'created_at',
  'started_at',
  'ended_at',
] as const satisfies (keyof JobsTable)[];

type RecordRow = Pick<Selectable<JobsTable>, (typeof RECORD)[number]>;

export class JobRepository {
  readonly #db: Kysely<Tables>;

  constructor(db: Kysely<Tables>) {
    this.#db = db;
  }

  /** `maxOpen`: of the model's jobs that have not ended. */
  async accept(job: NewJob, repeatable: Repeatable | null, maxOpen: number): Promise<Accepted> {
    return this.#db.transaction().execute(async (trx) => {
      const before = repeatable === null ? null : await findRepeated(trx, job.entity, repeatable);
      if (before !== null) return before;
      if ((await countOpen(trx, job.modelId)) >= maxOpen) return { kind: 'full' };
      await trx
        .insertInto('jobs')
        .values({
          id: job.id,
          model_id: job.modelId,
          entity: job.entity,
          kind: job.kind,
          state: 'queued' satisfies JobState,
          config: JSON.stringify(job.config),
          input_key: job.inputKey,
          input_bytes: job.inputBytes,
          attempts: 0,
          cancel_requested: 0,
          snapshot_key: null,
          snapshot_sha256: null,
          error_message: null,
          created_at: job.createdAt,
          started_at: null,
          ended_at: null,
        })
        .execute();
      const references = job.references.map((reference) => ({
        job_id: job.id,
        checkpoint_id: reference.checkpointId,
        bytes: reference.bytes,
      }));
      if (references.length > 0) await trx.insertInto('job_references').values(references).execute();
      if (repeatable !== null) await rememberKey(trx, job, repeatable);
      return { kind: 'new' };
    });
  }

  /** The job behind an idempotency key, where there is one. */
  async findRepeated(entity: string, repeatable: Repeatable): Promise<Repeated | null> {
    return findRepeated(this.#db, entity, repeatable);
  }

  async forgetKeys(before: string): Promise<void> {
    await this.#db.deleteFrom('idempotency_keys').where('created_at', '<', before).execute();
  }

  async find(id: string): Promise<JobRecord | null> {
    const row = await this.#db.selectFrom('jobs').select(RECORD).where('id', '=', id).executeTakeFirst();
    return row === undefined ? null : toRecord(row);
  }

  /** Another entity's job is found like one that never was: not. */
  async findOwned(id: string, entity: string): Promise<JobRecord | null> {
    const row = await this.#db
      .selectFrom('jobs')
      .select(RECORD)
      .where('id', '=', id)
      .where('entity', '=', entity)
      .executeTakeFirst();
    return row === undefined ? null : toRecord(row);
  }

  async countByState(): Promise<Map<string, number>> {
    const rows = await this.#db
      .selectFrom('jobs')
      .select(['state', ({ fn }) => fn.countAll<number>().as('count')])
      .groupBy('state')
      .execute();
    return new Map(rows.map((row) => [row.state, row.count]));
  }

  /** Jobs of the model that have not ended. */
  countOpen(modelId: string): Promise<number> {
    return countOpen(this.#db, modelId);
  }

  /**
   * A queued job whose model has no running one: jobs of a model go in order. Entities have their turns: `served` are those that had one,
   * the last one last. Of an entity the oldest job comes. One of a model in `yielded` counts as accepted behind the sequence there, the first
   * one first.
   */
  async nextQueued(served: readonly string[], yielded: ReadonlyMap<string, number>): Promise<StoredJob | null> {
    const oldest = await oldestQueued(this.#db);
    const order = [...yielded.keys()];
    const place = (job: (typeof oldest)[number]) => Math.max(job.sequence, yielded.get(job.model_id) ?? 0);
    const [first] = oldest.sort(
      (x, y) =>
        served.indexOf(x.entity) - served.indexOf(y.entity) ||
        place(x) - place(y) ||
        order.indexOf(x.model_id) - order.indexOf(y.model_id),
    );
    if (first === undefined) return null;
    const row = await this.#db.selectFrom('jobs').selectAll().where('sequence', '=', first.sequence).executeTakeFirst();
    return row === undefined ? null : fromRow(row);
  }

  /** Sequence of the newest job of another model that waits; null where none does. */
  async newestOther(modelId: string): Promise<number | null> {
    const { newest } = await this.#db
      .selectFrom('jobs')
      .select(({ fn }) => fn.max<number | null>('sequence').as('newest'))
      .where('state', '=', 'queued' satisfies JobState)
      .where('model_id', '!=', modelId)
      .executeTakeFirstOrThrow();
    return newest;
  }

  /** Throws TransitionError where the job is not queued, or is to be cancelled. */
  async start(id: string, at: string): Promise<void> {
    await this.#db.transaction().execute(async (trx) => {
      const job = await requireJob(trx, id);
      if (job.cancel_requested !== 0) throw new TransitionError('job', 'cancelled', 'start');
      const state = transition('job', job.state, 'start');
      const changes = { state, attempts: job.attempts + 1, started_at: job.started_at ?? at };
      await trx.updateTable('jobs').set(changes).where('id', '=', id).execute();
    });
  }

  /** A start that did not count is taken back. */
  async requeue(id: string, counts: boolean): Promise<void> {
    await this.#db.transaction().execute(async (trx) => {
      const job = await requireJob(trx, id);
      const state = transition('job', job.state, 'requeue');
      const attempts = counts ? job.attempts : job.attempts - 1;
      await trx.updateTable('jobs').set({ state, attempts }).where('id', '=', id).execute();
    });
  }

  /** At start nothing runs: what says so was cut off. */
  async running(): Promise<StoredJob[]> {
    const rows = await this.#db
      .selectFrom('jobs')
      .selectAll()
      .where('state', '=', 'running')
      .orderBy('sequence')
      .execute();
    return rows.map(fromRow);
  }

  /** Replaces the job's snapshot; returns the key of the one before. Progress ends a row of crashes. */
  async setSnapshot(id: string, key: string, sha256: string): Promise<string | null> {
    return this.#db.transaction().execute(async (trx) => {
      const job = await requireJob(trx, id);
      if (job.state !== ('running' satisfies JobState)) throw new Error(`Job ${id} is ${job.state}.`);
      const changes = { snapshot_key: key, snapshot_sha256: sha256, attempts: 1 };
      await trx.updateTable('jobs').set(changes).where('id', '=', id).execute();
      return job.snapshot_key;
    });
  }

  /** False where the job had such an event before, has ended or has gone. */
  async append(id: string, event: NewEvent): Promise<boolean> {
    return this.#db.transaction().execute(async (trx) => {
      const job = await trx.selectFrom('jobs').select('ended_at').where('id', '=', id).executeTakeFirst();
      return job?.ended_at === null ? insertEvent(trx, id, event) : false;
    });
  }

  /**
   * Ends a job with its last event. Returns the blobs that it needs no more; null where it has gone or ended before.
   * `action` is `cancel` for a failure that the client asked for.
   */
  async end(id: string, action: 'succeed' | 'fail' | 'cancel', event: NewEvent): Promise<string[] | null> {
    return this.#db.transaction().execute(async (trx) => {
      const job = await trx.selectFrom('jobs').select(RECORD).where('id', '=', id).executeTakeFirst();
      if (job === undefined || job.ended_at !== null) return null;
      const state = transition('job', job.state, action);
      const message = event.data['error_message'];
      const changes = {
        state,
        input_key: null,
        snapshot_key: null,
        ended_at: event.at,
        error_message: typeof message === 'string' ? message : null,
      };
      await trx.updateTable('jobs').set(changes).where('id', '=', id).execute();
      await trx.deleteFrom('job_references').where('job_id', '=', id).execute();
      await insertEvent(trx, id, event);
      return [job.input_key, job.snapshot_key].filter((key) => key !== null);
    });
  }

  /** True where the job has not ended and has now been asked to. One whose step is listed has nothing left but to say so: too late. */
  async requestCancel(id: string): Promise<boolean> {
    const result = await this.#db
      .updateTable('jobs')
      .set({ cancel_requested: 1 })
      .where('id', '=', id)
      .where('ended_at', 'is', null)
      .where(({ not, exists, selectFrom }) =>
        not(exists(selectFrom('checkpoints').select('checkpoints.id').where('checkpoints.job_id', '=', id))),
      )
      .executeTakeFirst();
    return result.numUpdatedRows > 0n;
  }

  /** Events with a sequence above `after`, oldest first. */
  async events(id: string, after: number, limit: number): Promise<StoredEvent[]> {
    const rows = await this.#db
      .selectFrom('job_events')
      .selectAll()
      .where('job_id', '=', id)
      .where('sequence', '>', after)
      .orderBy('sequence')
      .limit(limit)
      .execute();
    return rows.map(fromEventRow);
  }

  /** Null where it has told nothing under this key. */
  async event(id: string, key: string): Promise<StoredEvent | null> {
    const row = await this.#db
      .selectFrom('job_events')
      .selectAll()
      .where('job_id', '=', id)
      .where('key', '=', key)
      .executeTakeFirst();
    return row === undefined ? null : fromEventRow(row);
  }

  /** For a type that is among a job's last events: the search goes back through all that came after it. */
  async lastEvent(id: string, type: string): Promise<StoredEvent | null> {
    const row = await this.#db
      .selectFrom('job_events')
      .selectAll()
      .where('job_id', '=', id)
      .where('type', '=', type)
      .orderBy('sequence', 'desc')
      .limit(1)
      .executeTakeFirst();
    return row === undefined ? null : fromEventRow(row);
  }

  /** Sequence of an event of this job; null where it has none of this id. */
  async sequenceOf(id: string, eventId: string): Promise<number | null> {
    const row = await this.#db
      .selectFrom('job_events')
      .select('sequence')
      .where('job_id', '=', id)
      .where('id', '=', eventId)
      .executeTakeFirst();
    return row?.sequence ?? null;
  }
}

interface QueuedJob {
  entity: string;
  model_id: string;
  sequence: number;
}

/**
 * Of each model that has none running. From one model to the next in the index, past what else waits for each: a tenant may have a hundred
 * thousand queued. SQLite would rather read all of them by their state; states are literals, as the index's own is.
 */
async function oldestQueued(db: Kysely<Tables>): Promise<QueuedJob[]> {
  const { rows } = await sql<QueuedJob>`with recursive waiting (model_id) as (
      select min(model_id) from jobs indexed by queued_jobs where state = 'queued'
      union all
      select (
        select min(model_id) from jobs indexed by queued_jobs where state = 'queued' and model_id > waiting.model_id
      ) from waiting where model_id is not null
    )
    select jobs.entity, jobs.model_id, jobs.sequence
    from waiting join jobs on jobs.sequence = (
      select min(first.sequence) from jobs as first where first.state = 'queued' and first.model_id = waiting.model_id
    )
    where waiting.model_id not in (select model_id from jobs where state = 'running')`.execute(db);
  return rows;
}

async function insertEvent(trx: Transaction<Tables>, jobId: string, event: NewEvent): Promise<boolean> {
  const known = await trx
    .selectFrom('job_events')
    .select('id')
    .where('job_id', '=', jobId)
    .where('key', '=', event.key)
    .executeTakeFirst();
  if (known !== undefined) return false;
  // Not their number, which takes the longer the more there are.
  const last = await trx
    .selectFrom('job_events')
    .select('sequence')
    .where('job_id', '=', jobId)
    .orderBy('sequence', 'desc')
    .limit(1)
    .executeTakeFirst();
  const row: JobEventsTable = {
    job_id: jobId,
    sequence: last === undefined ? 0 : last.sequence + 1,
    key: event.key,
    id: randomUUID(),
    type: event.type,
    data: JSON.stringify(event.data),
    created_at: event.at,
  };
  await trx.insertInto('job_events').values(row).execute();
  return true;
}

async function countOpen(db: Kysely<Tables>, modelId: string): Promise<number> {
  const { count } = await db
    .selectFrom('jobs')
    .select(({ fn }) => fn.countAll<number>().as('count'))
    .where('model_id', '=', modelId)
    .where('ended_at', 'is', null)
    .executeTakeFirstOrThrow();
  return count;
}

async function requireJob(trx: Transaction<Tables>, id: string): Promise<RecordRow> {
  return trx.selectFrom('jobs').select(RECORD).where('id', '=', id).executeTakeFirstOrThrow();
}

async function findRepeated(
  db: Kysely<Tables>,
  entity: string,
  { operation, key, digest }: Repeatable,
): Promise<Repeated | null> {
  const row = await db
    .selectFrom('idempotency_keys')
    .select(['digest', 'result_id'])
    .where('entity', '=', entity)
    .where('operation', '=', operation)
    .where('key', '=', key)
    .executeTakeFirst();
  if (row === undefined) return null;
  return row.digest === digest ? { kind: 'existing', id: row.result_id } : { kind: 'other' };
}

async function rememberKey(trx: Transaction<Tables>, job: NewJob, repeatable: Repeatable): Promise<void> {
  const { operation, key, digest } = repeatable;
  const row = { entity: job.entity, operation, key, digest, result_id: job.id, created_at: job.createdAt };
  await trx.insertInto('idempotency_keys').values(row).execute();
}

function fromRow(row: Selectable<JobsTable>): StoredJob {
  return { ...toRecord(row), config: JSON.parse(row.config) as unknown };
}

function toRecord(row: RecordRow): JobRecord {
  return {
    id: row.id,
    modelId: row.model_id,
    entity: row.entity,
    kind: row.kind as 'rl' | 'sft',
    state: row.state as JobState,
    inputKey: row.input_key,
    attempts: row.attempts,
    cancelRequested: row.cancel_requested !== 0,
    snapshotKey: row.snapshot_key,
    snapshotSha256: row.snapshot_sha256,
    errorMessage: row.error_message,
    createdAt: row.created_at,
    startedAt: row.started_at,
    endedAt: row.ended_at,
  };
}

function fromEventRow(row: JobEventsTable): StoredEvent {
  return {
    id: row.id,
    sequence: row.sequence,
    type: row.type,
    data: JSON.parse(row.data) as Record<string, unknown>,
  };
}
