/** What the store says of jobs: whose they are, which comes next, what is kept of them and what their ends leave. */
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { TransitionError } from '../../../src/control/lifecycle.ts';
import { Database } from '../../../src/control/store/database.ts';
import { JobRepository, type NewJob, type Repeatable } from '../../../src/control/store/job-repository.ts';
import { ModelRepository } from '../../../src/control/store/model-repository.ts';
import { StorageRepository } from '../../../src/control/store/storage-repository.ts';

const AT = '2026-01-01T00:00:00.000Z';
const LATER = '2026-01-02T00:00:00.000Z';

let directory: string;
let database: Database;
let jobs: JobRepository;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-jobs-'));
  database = await Database.open(directory);
  jobs = new JobRepository(database.db);
});
afterEach(async () => {
  await database.close();
  rmSync(directory, { recursive: true, force: true });
});

async function addModel(entity = 'e'): Promise<string> {
  const id = randomUUID();
  const [baseModel, baseDigest, runId] = ['b', 'd', randomUUID()];
  const model = {
    id,
    entity,
    project: 'p',
    name: id,
    baseModel,
    baseDigest,
    runId,
    lora: {},
    nextStep: 1,
    createdAt: AT,
  };
  const first = { id: `${id}-0`, modelId: id, jobId: null, step: 0, version: 'v', blobKey: 'adapters/0', bytes: 1 };
  await new ModelRepository(database.db).create(model, { ...first, createdAt: AT });
  return id;
}

const newJob = (modelId: string, more: Partial<NewJob> = {}): NewJob => ({
  ...{ id: randomUUID(), modelId, entity: 'e', kind: 'sft', config: {}, inputKey: 'inputs/1', inputBytes: 7 },
  ...{ references: [], createdAt: AT },
  ...more,
});

async function accept(modelId: string, more: Partial<NewJob> = {}): Promise<string> {
  const job = newJob(modelId, more);
  expect(await jobs.accept(job, null, 100)).toEqual({ kind: 'new' });
  return job.id;
}

async function started(modelId: string, more: Partial<NewJob> = {}): Promise<string> {
  const id = await accept(modelId, more);
  await jobs.start(id, AT);
  return id;
}

const event = (key: string, type = 'gradient_step', data = {}) => ({ key, type, data, at: LATER });
const end = (id: string, action: 'succeed' | 'fail' | 'cancel' = 'fail') =>
  jobs.end(id, action, event('end', 'training_failed', { error_message: 'why' }));

test('a model has so many open jobs as it may; those that have ended, and those of others, are not among them', async () => {
  const [model, other] = [await addModel(), await addModel()];
  await accept(other);
  const first = await accept(model);
  expect(await jobs.accept(newJob(model), null, 1)).toEqual({ kind: 'full' });
  expect(await jobs.countOpen(model)).toBe(1);
  await end(first);
  expect(await jobs.countOpen(model)).toBe(0);
  expect(await jobs.accept(newJob(model), null, 1)).toEqual({ kind: 'new' });
});

test('a key means the job that it made, to its own entity and operation, however many jobs are open by now', async () => {
  const model = await addModel();
  const repeatable: Repeatable = { operation: 'o', key: 'k', digest: 'd' };
  const job = newJob(model);
  expect(await jobs.accept(job, repeatable, 1)).toEqual({ kind: 'new' });
  expect(await jobs.accept(newJob(model), repeatable, 1)).toEqual({ kind: 'existing', id: job.id });
  expect(await jobs.accept(newJob(model), { ...repeatable, digest: 'x' }, 1)).toEqual({ kind: 'other' });
  expect(await jobs.findRepeated('e', repeatable)).toEqual({ kind: 'existing', id: job.id });
  expect(await jobs.findRepeated('f', repeatable)).toBeNull();
  expect(await jobs.findRepeated('e', { ...repeatable, operation: 'p' })).toBeNull();
  expect(await jobs.findRepeated('e', { ...repeatable, key: 'l' })).toBeNull();
  await jobs.forgetKeys(AT);
  expect(await jobs.findRepeated('e', repeatable)).not.toBeNull();
  await jobs.forgetKeys(LATER);
  expect(await jobs.findRepeated('e', repeatable)).toBeNull();
});

test('a job is found by its own entity only', async () => {
  const id = await accept(await addModel());
  const found = await jobs.findOwned(id, 'e');
  expect(found?.id).toBe(id);
  // It may be of megabytes, and whoever asks after a job wants to know its state.
  expect(found).not.toHaveProperty('config');
  expect(await jobs.findOwned(id, 'f')).toBeNull();
});

test('the oldest job of the entity whose turn is longest ago comes next, past models that train', async () => {
  const [mine, busy, theirs] = [await addModel(), await addModel(), await addModel('d')];
  expect(await jobs.nextQueued([], new Map())).toBeNull();
  const running = await started(busy);
  await accept(busy);
  const [first, second] = [await accept(mine), await accept(mine)];
  const foreign = await accept(theirs, { entity: 'd' });
  const next = async (served: string[]) => (await jobs.nextQueued(served, new Map()))?.id;
  expect(await next([])).toBe(first);
  expect(await next(['e'])).toBe(foreign);
  expect(await next(['d', 'e'])).toBe(foreign);
  expect(await next(['e', 'd'])).toBe(first);
  await end(first);
  await end(foreign);
  expect(await next([])).toBe(second);
  await end(second);
  expect(await next([])).toBeUndefined();
  await end(running);
  expect(await next([])).toBeDefined();
});

test('of an entity a job that yielded comes behind those that waited then, and before those that came later', async () => {
  const [long, short, third, theirs] = [await addModel(), await addModel(), await addModel(), await addModel('d')];
  const running = await started(long);
  expect(await jobs.newestOther(long)).toBeNull();
  const behind = await accept(long);
  expect(await jobs.newestOther(long)).toBeNull();
  const first = await accept(short);
  const waited = (await jobs.newestOther(long)) ?? 0;
  const second = await accept(third);
  const newest = (await jobs.newestOther(long)) ?? 0;
  expect(newest).toBeGreaterThan(waited);
  await jobs.requeue(running, false);
  const next = async (served: string[], yielded: [string, number][]) =>
    (await jobs.nextQueued(served, new Map(yielded)))?.id;
  expect(await next([], [])).toBe(running);
  expect(await next([], [[long, waited]])).toBe(first);
  const both: [string, number][] = [
    [long, waited],
    [short, newest],
  ];
  expect(await next([], both)).toBe(running);
  const all: [string, number][] = [...both, [third, newest]];
  expect(await next([], [...all.slice(1), [long, newest]])).toBe(first);
  expect(await next([], [...all.slice(2), [long, newest], [short, newest]])).toBe(second);
  const foreign = await accept(theirs, { entity: 'd' });
  expect(await next(['e'], [[theirs, newest]])).toBe(foreign);
  expect(await next(['d', 'e'], [])).toBe(foreign);
  for (const id of [first, foreign]) await end(id);
  // Of those that came after it has yielded none goes first.
  expect(await next([], [[long, waited]])).toBe(running);
  await end(second);
  // Those of the model that yielded stay in order.
  expect(await next([], [[long, newest]])).toBe(running);
  await end(running);
  expect(await next([], [[long, newest]])).toBe(behind);
});

test('each start counts, one that was taken back does not, and the first one’s time stays', async () => {
  const id = await accept(await addModel());
  const job = async () => {
    const { state, attempts, startedAt } = (await jobs.find(id)) ?? {};
    return [state, attempts, startedAt];
  };
  await jobs.start(id, AT);
  expect(await job()).toEqual(['running', 1, AT]);
  await jobs.requeue(id, true);
  await jobs.start(id, LATER);
  expect(await job()).toEqual(['running', 2, AT]);
  await jobs.requeue(id, false);
  expect(await job()).toEqual(['queued', 1, AT]);
  await jobs.start(id, LATER);
  // Progress: the crashes before are forgotten, the start that made it is not.
  await jobs.setSnapshot(id, 'snapshots/1', 's');
  expect(await job()).toEqual(['running', 1, AT]);
});

test('a job that is to be cancelled does not start; one that has ended cannot be asked to', async () => {
  const model = await addModel();
  const [first, second] = [await accept(model), await accept(model)];
  expect(await jobs.requestCancel(first)).toBe(true);
  await expect(jobs.start(first, AT)).rejects.toThrow(TransitionError);
  await jobs.start(second, AT);
  expect((await jobs.find(second))?.cancelRequested).toBe(false);
  await end(second);
  expect(await jobs.requestCancel(second)).toBe(false);
  expect(await jobs.requestCancel(randomUUID())).toBe(false);
});

test('a snapshot takes the place of the one before, of a job that runs', async () => {
  const id = await accept(await addModel());
  await expect(jobs.setSnapshot(id, 'snapshots/0', 's')).rejects.toThrow('is queued');
  await jobs.start(id, AT);
  expect(await jobs.setSnapshot(id, 'snapshots/1', 'one')).toBeNull();
  expect(await jobs.setSnapshot(id, 'snapshots/2', 'two')).toBe('snapshots/1');
  expect(await jobs.find(id)).toMatchObject({ snapshotKey: 'snapshots/2', snapshotSha256: 'two' });
});

test('events of a job are numbered from 0, once per key, whatever others tell, and none comes after the end', async () => {
  const model = await addModel();
  const [id, other] = [await started(model), await started(await addModel())];
  await jobs.append(other, event('a'));
  await jobs.append(other, event('b'));
  const told = [];
  for (const key of ['a', 'b', 'a', 'c'])
    told.push(await jobs.append(id, event(key, key === 'b' ? 'x' : 'y', { key })));
  expect(told).toEqual([true, true, false, true]);
  await jobs.append(other, event('d', 'x', { key: 'd' }));
  const page = async (after: number, limit = 100) =>
    (await jobs.events(id, after, limit)).map(({ sequence, data }) => [sequence, data['key']]);
  expect(await page(-1)).toEqual([
    [0, 'a'],
    [1, 'b'],
    [2, 'c'],
  ]);
  expect(await page(0, 1)).toEqual([[1, 'b']]);
  expect((await jobs.event(id, 'b'))?.sequence).toBe(1);
  expect(await jobs.event(id, 'd')).toBeNull();
  expect((await jobs.lastEvent(id, 'y'))?.sequence).toBe(2);
  expect((await jobs.lastEvent(id, 'x'))?.data).toEqual({ key: 'b' });
  const [, second] = await jobs.events(id, -1, 100);
  expect(await jobs.sequenceOf(id, second?.id ?? '')).toBe(1);
  expect(await jobs.sequenceOf(other, second?.id ?? '')).toBeNull();
  await end(id);
  expect(await jobs.append(id, event('e'))).toBe(false);
});

test('an end is one write: the state, the event and its time, and what is needed no more is named and let go', async () => {
  const model = await addModel();
  const references = [{ checkpointId: 'c', bytes: 3 }];
  const [id, other] = [await started(model, { references }), await accept(model, { references })];
  await jobs.setSnapshot(id, 'snapshots/1', 's');
  expect(await end(id, 'cancel')).toEqual(['inputs/1', 'snapshots/1']);
  expect(await jobs.find(id)).toMatchObject({
    ...{ state: 'cancelled', inputKey: null, snapshotKey: null, errorMessage: 'why', endedAt: LATER },
  });
  const kept = await database.db.selectFrom('job_references').select('job_id').execute();
  expect(kept).toEqual([{ job_id: other }]);
  expect(await end(id)).toBeNull();
  expect(await jobs.events(id, -1, 100)).toHaveLength(1);
  expect(await jobs.countByState()).toEqual(
    new Map([
      ['cancelled', 1],
      ['queued', 1],
    ]),
  );
});

test('what a job was sent counts for its entity until it ends; a step that it keeps once the step is deleted, and once for all', async () => {
  const [model, theirs] = [await addModel(), await addModel('f')];
  const storage = new StorageRepository(database.db);
  const used = () => Promise.all(['e', 'f'].map((entity) => storage.usedBytes(entity)));
  // Of each model's first step.
  expect(await used()).toEqual([1, 1]);
  // Rows of jobs and of the events that end them, which stay.
  const [row, last] = [{}, { error_message: 'why' }].map((json) => 512 + JSON.stringify(json).length) as [
    number,
    number,
  ];
  const references = [{ checkpointId: `${model}-0`, bytes: 100 }];
  const first = await accept(model, { references });
  const second = await accept(model, { inputBytes: 20, references });
  await accept(theirs, { entity: 'f', inputBytes: 300 });
  expect(await used()).toEqual([28 + 2 * row, 301 + row]);
  await new ModelRepository(database.db).removeCheckpoints(model, [0]);
  expect(await used()).toEqual([127 + 2 * row, 301 + row]);
  await end(first);
  expect(await used()).toEqual([120 + 2 * row + last, 301 + row]);
  await end(second);
  expect(await used()).toEqual([2 * (row + last), 301 + row]);
});

test('what was running is told in the order of its acceptance', async () => {
  const ids = [];
  for (let i = 0; i < 3; i++) ids.push(await started(await addModel()));
  await accept(await addModel());
  expect((await jobs.running()).map(({ id }) => id)).toEqual(ids);
});
