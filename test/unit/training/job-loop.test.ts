/** Interruptions: stops, crashes of the process, crash loops, a full disk. What was acknowledged goes on. */
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { EngineUnavailableError } from '../../../src/control/engine/client.ts';
import { SessionError } from '../../../src/control/sessions/session.ts';
import { Database } from '../../../src/control/store/database.ts';
import { JobRepository } from '../../../src/control/store/job-repository.ts';
import { FolderBlobStore, type BlobStore } from '../../../src/control/store/blob-store.ts';
import { SqliteError } from '../../../src/control/store/sqlite-client.ts';
import { InterruptedError } from '../../../src/control/training/errors.ts';
import { JobLoop, type RunJob } from '../../../src/control/training/jobs/job-loop.ts';
import { StoredEvents } from '../../../src/control/training/jobs/stored-ports.ts';
import { loopOf, rl } from './job-loops.ts';
import { allEvents, createModel, finished, group, startPlane, type Plane } from './plane.ts';

const JOBS = '/v1/preview/training-jobs';

let dataDir: string;
let planes: Plane[];
beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), 'tandem-loop-'));
  planes = [];
});
afterEach(async () => {
  for (const plane of planes) await plane.end().catch(() => undefined);
  rmSync(dataDir, { recursive: true, force: true });
});

async function start(options: Parameters<typeof startPlane>[0] = {}): Promise<Plane> {
  const plane = await startPlane({ dataDir, ...options });
  planes.push(plane);
  return plane;
}

async function end(plane: Plane): Promise<void> {
  planes = planes.filter((other) => other !== plane);
  await plane.end();
}

/** One that has been accepted and does not run. */
async function waitingJob(): Promise<{ plane: Plane; job: string }> {
  const plane = await start({ paused: true });
  const { id: modelId } = await createModel(plane, 'agent');
  return { plane, job: String((await plane.ok(JOBS, rl(modelId)))['id']) };
}

test('a stopped server takes its job up again; events that were seen stay', async () => {
  let plane = await start({ paused: true });
  const { id: modelId } = await createModel(plane, 'agent');
  const job = String((await plane.ok(JOBS, rl(modelId, 8)))['id']);
  await end(plane);
  let events: unknown[] = [];
  let stops = 0;
  for (let over = false; !over && stops < 100; stops++) {
    plane = await start({ paused: true });
    let calls = 0;
    let stop = (): void => undefined;
    const reached = new Promise<void>((resolve) => (stop = resolve));
    plane.engine_.beforeCall = () => {
      if (++calls === 5) stop();
    };
    await plane.side.start();
    const done = finished(plane, job).then(
      () => true,
      () => false,
    );
    await Promise.race([reached, done]);
    const seen = await allEvents(plane, job);
    expect(seen.slice(0, events.length)).toEqual(events);
    events = seen;
    over = seen.some(({ type }) => type === 'training_ended');
    await end(plane);
  }
  expect(stops).toBeGreaterThan(2);
  plane = await start();
  const all = await finished(plane, job);
  const steps = Number(all[0]?.data['num_sequences']);
  expect(steps).toBeGreaterThan(1);
  expect(all.map(({ type }) => type)).toEqual([
    'training_started',
    ...Array.from({ length: steps }, () => 'gradient_step'),
    'training_ended',
  ]);
  const page = await plane.json(`/v1/preview/models/${modelId}/checkpoints`);
  expect(page).toMatchObject({ data: [{ step: 0 }, { step: 1 }] });
}, 120_000);

test('what says it runs at the start was cut off: it runs again, and ends once', async () => {
  let plane = await start({ paused: true });
  const { id: modelId } = await createModel(plane, 'agent');
  const ids = [];
  for (let i = 0; i < 3; i++) ids.push(String((await plane.ok(JOBS, rl(modelId)))['id']));
  // As a process leaves it that is killed in the middle of the first job.
  await plane.database.db
    .updateTable('jobs')
    .set({ state: 'running', attempts: 1 })
    .where('id', '=', ids[0] ?? '')
    .execute();
  await end(plane);
  plane = await start();
  for (const [index, id] of ids.entries()) {
    const events = await finished(plane, id);
    expect(events.at(-1)).toMatchObject({ type: 'training_ended', data: { step: index + 1 } });
  }
});

test('a job that keeps crashing without progress fails; the next one runs', async () => {
  let plane = await start({ paused: true, settings: { maxTrainingAttempts: 3 } });
  const { id: modelId } = await createModel(plane, 'agent');
  const bad = String((await plane.ok(JOBS, rl(modelId)))['id']);
  const good = String((await plane.ok(JOBS, rl(modelId)))['id']);
  await plane.database.db.updateTable('jobs').set({ state: 'running', attempts: 3 }).where('id', '=', bad).execute();
  await end(plane);
  plane = await start({ settings: { maxTrainingAttempts: 3 } });
  const events = await finished(plane, bad);
  expect(events).toMatchObject([
    { type: 'training_failed', data: { error_message: expect.stringMatching(/3 times/) as string } },
  ]);
  expect((await finished(plane, good)).at(-1)).toMatchObject({ type: 'training_ended', data: { step: 1 } });
});

test('stops that were asked for are no crashes', async () => {
  let plane = await start({ paused: true, settings: { maxTrainingAttempts: 2 } });
  const { id: modelId } = await createModel(plane, 'agent');
  const job = String((await plane.ok(JOBS, rl(modelId)))['id']);
  await end(plane);
  for (let round = 0; round < 4; round++) {
    plane = await start({ paused: true, settings: { maxTrainingAttempts: 2 } });
    // Never gets to its first call.
    let reached = (): void => undefined;
    const first = new Promise<void>((resolve) => (reached = resolve));
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    plane.engine_.beforeCall = () => {
      reached();
      return held;
    };
    await plane.side.start();
    await first;
    const ending = end(plane);
    release();
    await ending;
  }
  plane = await start({ settings: { maxTrainingAttempts: 2 } });
  expect((await finished(plane, job)).at(-1)?.type).toBe('training_ended');
});

test('a cancel that the process did not live to carry out is carried out', async () => {
  let plane = await start({ paused: true });
  const { id: modelId } = await createModel(plane, 'agent');
  const job = String((await plane.ok(JOBS, rl(modelId)))['id']);
  await plane.database.db.updateTable('jobs').set({ state: 'running', cancel_requested: 1 }).execute();
  await end(plane);
  plane = await start({ paused: true });
  await plane.side.start();
  // Not when its turn comes.
  expect((await new JobRepository(plane.database.db).find(job))?.state).toBe('cancelled');
  expect(await finished(plane, job)).toMatchObject([
    { type: 'training_failed', data: { error_message: 'The job was cancelled.' } },
  ]);
  expect(await plane.json(`${JOBS}/${job}`)).toMatchObject({ status: 'cancelled' });
});

/** Lets the loop go as far as it can between any two of a cancel's own queries. */
class SlowCancel extends JobRepository {
  between = (): Promise<void> => Promise.resolve();
  override async requestCancel(id: string): Promise<boolean> {
    await this.between();
    const asked = await super.requestCancel(id);
    await this.between();
    return asked;
  }
  override async find(id: string) {
    const found = await super.find(id);
    await this.between();
    return found;
  }
}

test.each([1, 2, 3])(
  'a cancel that meets the start of its job, at instant %d, stops it and ends it once',
  async (at) => {
    const { plane, job } = await waitingJob();
    const repository = new SlowCancel(plane.database.db);
    let running = false;
    const loop: JobLoop = new JobLoop({
      repository,
      blobs: new FolderBlobStore(join(dataDir, 'blobs')),
      run: async (_job, signal) => {
        running = true;
        if (!signal.aborted) await once(signal, 'abort');
        running = false;
        return 'stopped';
      },
      maxAttempts: 3,
      turnMs: 0,
      retryDelayMs: 1,
      log: pino({ level: 'silent' }),
    });
    let instants = 0;
    repository.between = async () => {
      if (++instants !== at) return;
      await loop.start();
      // Until it has taken the job, or found nothing to take.
      for (let turn = 0; turn < 50 && !running; turn++) await new Promise((resolve) => setTimeout(resolve, 1));
    };
    await loop.cancel(job);
    expect(running).toBe(false);
    expect((await repository.find(job))?.state).toBe('cancelled');
    expect(await repository.events(job, -1, 100)).toMatchObject([{ sequence: 0, type: 'training_failed' }]);
    await loop.stop();
  },
);

test.each<[Error, number, string, string | null]>([
  [new SqliteError('disk I/O error', 'SQLITE_IOERR'), 6, 'succeeded', null],
  [new EngineUnavailableError('The engine is not running.'), 6, 'succeeded', null],
  [new SessionError('unavailable', 'Prompt rendering is not available.'), 6, 'succeeded', null],
  [new Error('a fault'), 3, 'failed', 'The job was interrupted 3 times in a row without progress.'],
  [new InterruptedError('The disk is full.', { cause: null }), 3, 'failed', 'The disk is full.'],
])('%s: crashes that count against a job, of six', async (fault, runs, state, message) => {
  const { plane, job } = await waitingJob();
  const repository = new JobRepository(plane.database.db);
  let crashes = 0;
  const loop = new JobLoop({
    repository,
    blobs: new FolderBlobStore(join(dataDir, 'blobs')),
    run: async ({ id }) => {
      if (crashes < 6) {
        crashes++;
        throw fault;
      }
      const event = { key: 'end', type: 'training_ended', data: {}, at: new Date().toISOString() };
      await repository.end(id, 'succeed', event);
      return 'ended';
    },
    maxAttempts: 3,
    turnMs: 0,
    retryDelayMs: 1,
    log: pino({ level: 'silent' }),
  });
  await loop.start();
  await expect.poll(async () => (await repository.find(job))?.state, { timeout: 30_000 }).toBe(state);
  expect(crashes).toBe(runs);
  expect((await repository.find(job))?.errorMessage).toBe(message);
  await loop.stop();
});

test('a stop that meets a start which fails is no failure: nothing runs, and the job waits', async () => {
  const plane = await start({ paused: true });
  const { id: modelId } = await createModel(plane, 'agent');
  const job = String((await plane.ok(JOBS, rl(modelId)))['id']);
  const { loop, repository } = loopOf(plane, () => Promise.reject(new Error('It does not come to that.')));
  let fail = (_: Error): void => undefined;
  const starting = vi
    .spyOn(repository, 'start')
    .mockImplementation(() => new Promise<void>((_, reject) => (fail = reject)));
  await loop.start();
  await expect.poll(() => starting.mock.calls.length).toBe(1);
  const stopped = Promise.all([loop.stopModel(modelId), loop.stop()]);
  fail(new SqliteError('database is locked', 'SQLITE_BUSY'));
  await stopped;
  expect(starting).toHaveBeenCalledTimes(1);
  expect(await repository.find(job)).toMatchObject({ state: 'queued', attempts: 0 });
});

/** Runs until it is stopped. */
function endless(): { run: RunJob; signals: Map<string, AbortSignal> } {
  const signals = new Map<string, AbortSignal>();
  const run: RunJob = async ({ id }, signal) => {
    signals.set(id, signal);
    if (!signal.aborted) await once(signal, 'abort');
    return 'stopped';
  };
  return { run, signals };
}

test('a job that is cancelled between its turn and its start is no fault of the queue', async () => {
  const { plane, job } = await waitingJob();
  const log = pino({ level: 'silent' });
  const told = vi.spyOn(log, 'error');
  const { loop, repository } = loopOf(plane, endless().run, log);
  const { start: begin } = repository;
  vi.spyOn(repository, 'start').mockImplementationOnce(async (...args) => {
    await repository.requestCancel(job);
    return begin.apply(repository, args);
  });
  await loop.start();
  await expect.poll(async () => (await repository.find(job))?.state).toBe('cancelled');
  expect(told).not.toHaveBeenCalled();
  await loop.stop();
});

test('a job that comes while the queue is found empty runs at once', async () => {
  const { plane, job } = await waitingJob();
  const { run, signals } = endless();
  const { loop, repository } = loopOf(plane, run);
  vi.spyOn(repository, 'nextQueued').mockImplementationOnce(() => {
    loop.wake();
    return Promise.resolve(null);
  });
  await loop.start();
  await expect.poll(() => [...signals.keys()]).toEqual([job]);
  await loop.stop();
});

test('a cancel stops its own job, a deleted model its own; a queue that cannot be read is read again', async () => {
  const plane = await start({ paused: true });
  const [mine, other] = [await createModel(plane, 'mine'), await createModel(plane, 'other')];
  const ids = [];
  for (const { id } of [mine, other]) ids.push(String((await plane.ok(JOBS, rl(id)))['id']));
  const [running = '', waiting = ''] = ids;
  const { run, signals } = endless();
  const { loop, repository } = loopOf(plane, run);
  vi.spyOn(repository, 'nextQueued').mockRejectedValueOnce(new SqliteError('disk I/O error', 'SQLITE_IOERR'));
  await loop.start();
  await expect.poll(() => [...signals.keys()]).toEqual([running]);
  await loop.cancel(waiting);
  await loop.stopModel(other.id);
  expect(signals.get(running)?.aborted).toBe(false);
  expect((await repository.find(waiting))?.state).toBe('cancelled');
  await loop.cancel(running);
  expect([...signals.keys()]).toEqual([running]);
  expect((await repository.find(running))?.state).toBe('cancelled');
  await loop.stop();
});

test('a job that could not be queued again when it crashed is, as soon as the database works', async () => {
  const { plane, job } = await waitingJob();
  let runs = 0;
  const { run, signals } = endless();
  const { loop, repository } = loopOf(plane, (...given) =>
    runs++ === 0 ? Promise.reject(new Error('a fault')) : run(...given),
  );
  vi.spyOn(repository, 'requeue').mockRejectedValueOnce(new SqliteError('disk I/O error', 'SQLITE_IOERR'));
  await loop.start();
  await expect.poll(() => [...signals.keys()]).toEqual([job]);
  await loop.stop();
  expect(await repository.find(job)).toMatchObject({ state: 'queued', attempts: 1 });
});

test('an event is on the disk when its writer goes on', async () => {
  const { plane, job } = await waitingJob();
  const blobs = new FolderBlobStore(join(dataDir, 'blobs'));
  const events = new StoredEvents(new JobRepository(plane.database.db), blobs, pino({ level: 'silent' }));
  const other = await Database.open(dataDir);
  try {
    for (let step = 1; step <= 20; step++) {
      await events.append(job, `step-${step}`, 'gradient_step', { gradient_step: step });
      const seen = await new JobRepository(other.db).events(job, -1, 100);
      expect(seen.map(({ data }) => data['gradient_step'])).toEqual(Array.from({ length: step }, (_, i) => i + 1));
    }
    // Said again after a crash, nothing changes.
    await events.append(job, 'step-1', 'gradient_step', { gradient_step: 99 });
    expect(await new JobRepository(other.db).events(job, -1, 100)).toHaveLength(20);
  } finally {
    await other.close();
  }
});

test('two ends of one job cannot be', async () => {
  const plane = await start();
  const { id: modelId } = await createModel(plane, 'agent');
  const job = String((await plane.ok(JOBS, rl(modelId)))['id']);
  const events = await finished(plane, job);
  const jobs = new JobRepository(plane.database.db);
  const event = (key: string) => ({ key, type: 'training_failed', data: { error_message: 'x' }, at: 'now' });
  expect(await jobs.end(job, 'fail', event('end'))).toBeNull();
  expect(await jobs.end(job, 'cancel', event('other'))).toBeNull();
  // Nothing comes after the end; whoever tries without looking is refused by the database.
  expect(await jobs.append(job, event('third'))).toBe(false);
  expect(await jobs.append(job, { ...event('step-99'), type: 'gradient_step' })).toBe(false);
  const { at: created_at, key, type } = event('third');
  const row = { job_id: job, sequence: 99, key, id: 'third', type, data: '{}', created_at };
  await expect(plane.database.db.insertInto('job_events').values(row).execute()).rejects.toMatchObject({
    code: 'SQLITE_CONSTRAINT_UNIQUE',
  });
  await expect(jobs.start(job, 'now')).rejects.toThrow('A job that is succeeded cannot start.');
  expect(await allEvents(plane, job)).toEqual(events);
});

/** A store whose writes fail as those of a full disk do. */
function fullAtWill(store: BlobStore, full: () => boolean): BlobStore {
  return {
    draft: async (area) => {
      const draft = await store.draft(area);
      const write: typeof draft.write = async (file, source, maxBytes) => {
        if (!full()) return draft.write(file, source, maxBytes);
        await draft.write(file, Buffer.from('half'));
        throw Object.assign(new Error('no space left on device'), { code: 'ENOSPC' });
      };
      const { key, directory } = draft;
      return { key, directory, write, seal: () => draft.seal(), discard: () => draft.discard() };
    },
    path: (key, file) => store.path(key, file),
    remove: (key) => store.remove(key),
    sweep: (referenced) => store.sweep(referenced),
  };
}

test('a full disk is told, and nothing half is kept', async () => {
  let full = false;
  const plane = await start({ blobs: (store) => fullAtWill(store, () => full) });
  const { id: modelId } = await createModel(plane, 'agent');
  full = true;
  try {
    const body = { split: 'val', trajectory_groups: [group([1])] };
    for (const response of [
      await plane.post(`/v1/preview/models/${modelId}/log`, body),
      await plane.post(JOBS, rl(modelId)),
    ]) {
      expect(response.status).toBe(507);
      expect(await response.json()).toMatchObject({ error: { type: 'InsufficientStorageError', code: 507 } });
    }
  } finally {
    full = false;
  }
  expect(readdirSync(join(dataDir, 'blobs', 'drafts'))).toEqual([]);
  expect((await plane.json(`/v1/preview/models/${modelId}/log`))['data']).toEqual([]);
  expect((await finished(plane, String((await plane.ok(JOBS, rl(modelId)))['id']))).at(-1)?.type).toBe(
    'training_ended',
  );
});

test('a job ends well where what it needs no more cannot be removed', async () => {
  let refused = 0;
  const stubborn = (store: BlobStore): BlobStore => ({
    ...fullAtWill(store, () => false),
    remove: (key) => {
      if (key.startsWith('adapters/')) return store.remove(key);
      refused++;
      return Promise.reject(Object.assign(new Error('directory not empty'), { code: 'ENOTEMPTY' }));
    },
  });
  const plane = await start({ blobs: stubborn });
  const { id: modelId } = await createModel(plane, 'agent');
  const job = String((await plane.ok(JOBS, rl(modelId, 8)))['id']);
  expect((await finished(plane, job)).at(-1)).toMatchObject({ type: 'training_ended', data: { step: 1 } });
  expect(await plane.json(`${JOBS}/${job}`)).toMatchObject({ status: 'succeeded' });
  // Snapshots that were replaced, the last one, and the job's data.
  expect(refused).toBeGreaterThan(3);
});

test('the system check says what does not work', async () => {
  const plane = await start();
  expect(await plane.json('/v1/system-check')).toMatchObject({ status: 'ok' });
  rmSync(join(dataDir, 'blobs'), { recursive: true });
  const response = await plane.call('/v1/system-check');
  expect(response.status).toBe(503);
  const { checks } = (await response.json()) as { checks: { name: string; ok: boolean; message: string }[] };
  expect(checks.filter(({ ok }) => !ok).map(({ name }) => name)).toEqual(['storage']);
  expect(JSON.stringify(checks)).not.toContain(dataDir);
});
