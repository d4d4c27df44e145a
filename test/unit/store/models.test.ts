/** What the store says of models, their steps, what was logged for them, and the files that all of these name. */
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sql } from 'kysely';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ArtifactRepository } from '../../../src/control/store/artifact-repository.ts';
import { Database } from '../../../src/control/store/database.ts';
import { JobRepository } from '../../../src/control/store/job-repository.ts';
import { LogRepository, TooManyMetricsError } from '../../../src/control/store/log-repository.ts';
import { ModelRepository } from '../../../src/control/store/model-repository.ts';
import { storedBytes } from './row-bytes.ts';

const AT = '2026-01-01T00:00:00.000Z';
const LATER = '2026-01-02T00:00:00.000Z';

let directory: string;
let database: Database;
let models: ModelRepository;
let logs: LogRepository;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-models-'));
  database = await Database.open(directory);
  models = new ModelRepository(database.db);
  logs = new LogRepository(database.db);
});
afterEach(async () => {
  await database.close();
  rmSync(directory, { recursive: true, force: true });
});

async function addModel(more: { id?: string; createdAt?: string } = {}): Promise<string> {
  const { id = randomUUID(), createdAt = AT } = more;
  const model = { id, entity: 'e', project: 'p', name: id, baseModel: 'b', baseDigest: 'd', runId: randomUUID() };
  const first = {
    id: `${id}-0`,
    modelId: id,
    jobId: null,
    step: 0,
    version: 'v',
    blobKey: `adapters/${id}-0`,
    bytes: 1,
  };
  await models.create({ ...model, lora: {}, nextStep: 1, createdAt }, { ...first, createdAt });
  return id;
}

async function publish(modelId: string, jobId: string | null = null): Promise<string> {
  const id = randomUUID();
  const made = { id, modelId, jobId, version: 'v', blobKey: `adapters/${id}`, bytes: 1, createdAt: AT };
  expect(await models.publish(made)).not.toBeNull();
  return id;
}

async function addJob(modelId: string): Promise<string> {
  const id = randomUUID();
  const job = { id, modelId, entity: 'e', kind: 'sft' as const, config: {}, inputKey: `inputs/${id}`, inputBytes: 1 };
  const jobs = new JobRepository(database.db);
  await jobs.accept({ ...job, references: [], createdAt: AT }, null, 100);
  await jobs.start(id, AT);
  await jobs.setSnapshot(id, `snapshots/${id}`, 's');
  return id;
}

async function addLog(modelId: string, more: { split?: string; step?: number; metrics?: Record<string, number> } = {}) {
  const id = randomUUID();
  const { split = 's', step = 0, metrics = {} } = more;
  const log = {
    id,
    modelId,
    split,
    step,
    groups: 1,
    trajectories: 1,
    metrics,
    blobKey: `trajectories/${id}`,
    bytes: 1,
  };
  await logs.insert({ ...log, createdAt: AT }, `${modelId}-0`);
  return id;
}

const metricsOf = async (id: string) => (await models.metrics([id])).get(id);

test('models are read in the order in which they were made, also where the clock jumped back, with their steps in order', async () => {
  const first = await addModel({ id: 'c', createdAt: LATER });
  const others = [await addModel({ id: 'b' }), await addModel({ id: 'a' })];
  await publish(first);
  const { models: read, checkpoints } = await models.all();
  expect(read.map(({ id }) => id)).toEqual([first, ...others]);
  expect(checkpoints.map(({ step }) => step)).toEqual([0, 0, 0, 1]);
});

test('steps are numbered within their own model; pages of them go both ways from any, also from one that is deleted', async () => {
  const [model, other] = [await addModel(), await addModel()];
  const ids = [`${model}-0`];
  for (let step = 1; step <= 4; step++) ids.push(await publish(model));
  await publish(other);
  await models.removeCheckpoints(model, [3]);
  const page = async (after: number | null, order: 'asc' | 'desc', limit = 100) =>
    (await models.checkpointPage(model, { after, order, limit })).map(({ step }) => step);
  expect(await page(null, 'asc')).toEqual([0, 1, 2, 4]);
  expect(await page(1, 'asc', 1)).toEqual([2]);
  expect(await page(null, 'desc', 2)).toEqual([4, 2]);
  expect(await page(2, 'desc')).toEqual([1, 0]);
  expect(await models.stepOf(model, ids[2] ?? '')).toBe(2);
  expect(await models.stepOf(model, ids[3] ?? '')).toBe(3);
  for (const id of [ids[2], ids[3]]) expect(await models.stepOf(other, id ?? '')).toBeNull();
  await publish(other);
  expect((await models.checkpointPage(other, { after: null, order: 'asc', limit: 9 })).map(({ step }) => step)).toEqual(
    [0, 1, 2],
  );
});

test('steps are deleted of their own model alone, any number of them at once, and said once', async () => {
  const [model, other] = [await addModel(), await addModel()];
  await publish(model);
  // Those that are there: the last of one statement, and the first of the next.
  const steps = Array.from({ length: 1200 }, (_, i) => (i + 701) % 1200);
  expect((await models.removeCheckpoints(model, steps)).map(({ step }) => step)).toEqual([0, 1]);
  expect(await models.removeCheckpoints(model, steps)).toEqual([]);
  expect(await models.checkpointPage(other, { after: null, order: 'asc', limit: 9 })).toHaveLength(1);
});

test('a model goes with all that is its own; its files and the number of its steps are told, the number again to who asks again', async () => {
  const [model, other] = [await addModel(), await addModel()];
  const step = await publish(model);
  await publish(other);
  const [job, log] = [await addJob(model), await addLog(model)];
  expect(await models.remove(model, 'f', AT)).toBeNull();
  const removed = await models.remove(model, 'e', AT);
  const adapters = [`adapters/${model}-0`, `adapters/${step}`];
  const blobs = [...adapters, `inputs/${job}`, `snapshots/${job}`, `trajectories/${log}`].sort();
  const told = { deletedCheckpoints: 2, checkpointBytes: 2, blobs, first: true };
  expect({ ...removed, blobs: removed?.blobs.sort() }).toEqual(told);
  expect(await models.remove(model, 'e', LATER)).toEqual({ ...told, checkpointBytes: 0, blobs: [], first: false });
  expect(await models.remove(model, 'f', LATER)).toBeNull();
  expect((await models.all()).models.map(({ id }) => id)).toEqual([other]);
});

test('answers of deletes are forgotten when they are old', async () => {
  const [model, other] = [await addModel(), await addModel()];
  const step = await publish(other);
  await models.remove(model, 'e', AT);
  await models.removeCheckpoints(other, [1]);
  await models.forgetDeleted(AT);
  expect(await models.remove(model, 'e', AT)).toMatchObject({ first: false });
  expect(await models.stepOf(other, step)).toBe(1);
  await models.forgetDeleted('2099');
  expect(await models.remove(model, 'e', AT)).toBeNull();
  expect(await models.stepOf(other, step)).toBeNull();
});

test('every file that a row names is told', async () => {
  const model = await addModel();
  const [job, log] = [await addJob(model), await addLog(model)];
  const artifacts = new ArtifactRepository(database.db);
  const artifact = { id: 'a', entity: 'e', project: 'p', name: 'n', type: 'dataset', metadata: {}, createdAt: AT };
  await artifacts.insert(artifact, 1);
  await artifacts.putFile('a', { name: 'f', blobKey: 'uploads/a', bytes: 1, sha256: 's' }, 1);
  const named = [`adapters/${model}-0`, `inputs/${job}`, `snapshots/${job}`, `trajectories/${log}`, 'uploads/a'];
  expect([...(await models.referencedBlobs())].sort()).toEqual(named.sort());
});

test('what a job told of its step comes with the step: of its own model and step, the last of a name', async () => {
  const [model, other] = [await addModel(), await addModel()];
  const job = await addJob(model);
  await logs.record(model, `${job}/step-1`, 1, { loss: 2, only: 1 }, null);
  await logs.record(model, `${job}/step-2`, 1, { loss: 1 }, null);
  await logs.record(model, `${job}/target`, 7, { loss: 9 }, null);
  await logs.record(other, `${job}/other`, 1, { loss: 8 }, null);
  expect(await metricsOf(await publish(model, job))).toEqual({ loss: 1, only: 1 });
});

test('a row of the run is written once per key and model, and sets the metrics of a step that is there', async () => {
  const [model, other] = [await addModel(), await addModel()];
  const [own, gone] = [`${model}-0`, await publish(model)];
  expect(await logs.record(model, 'k', 0, { a: 1, b: 1 }, own)).toBe(true);
  expect(await logs.record(model, 'k', 0, { a: 2 }, own)).toBe(false);
  expect(await logs.record(other, 'k', 0, {}, null)).toBe(true);
  expect(await logs.record(model, 'l', 0, { b: 3, ['__proto__']: 4 }, own)).toBe(true);
  expect(Object.entries((await metricsOf(own)) ?? {})).toEqual([
    ['__proto__', 4],
    ['a', 1],
    ['b', 3],
  ]);
  await models.removeCheckpoints(model, [1]);
  expect(await logs.record(model, 'm', 1, { a: 1 }, gone)).toBe(true);
  expect(await logs.record(randomUUID(), 'k', 0, {}, null)).toBe(false);
});

test('logs and rows of a run come in pages of their own model, oldest first, from behind any of its own', async () => {
  const [model, other] = [await addModel(), await addModel()];
  const first = await addLog(model);
  const foreign = await addLog(other);
  const second = await addLog(model, { split: 't', step: 1 });
  const third = await addLog(model, { step: 1 });
  const page = async (after: string | null, limit = 9, filter: { split?: string; step?: number } = {}) => {
    const found = await logs.page(model, after, limit, { split: null, step: null, ...filter });
    return found?.rows.map(({ id }) => id);
  };
  expect(await page(null)).toEqual([first, second, third]);
  expect(await page(first, 1)).toEqual([second]);
  expect(await page(third)).toEqual([]);
  expect(await page(foreign)).toBeUndefined();
  expect(await page(null, 9, { split: 's' })).toEqual([first, third]);
  expect([await page(null, 9, { step: 0 }), await page(null, 9, { step: 1 })]).toEqual([[first], [second, third]]);
  expect((await logs.find(model, first))?.id).toBe(first);
  expect(await logs.find(model, foreign)).toBeNull();
  const rows = async (after: string | null, limit = 9) => (await logs.history(model, after, limit))?.rows;
  const all = (await rows(null)) ?? [];
  expect(all.map(({ key }) => key)).toEqual([first, second, third].map((id) => `log-${id}`));
  expect((await rows(all[0]?.id ?? '', 1))?.map(({ id }) => id)).toEqual([all[1]?.id]);
  const [theirs] = (await logs.history(other, null, 9))?.rows ?? [];
  expect(await rows(theirs?.id ?? '')).toBeUndefined();
});

test('a page of large rows ends early, and says that there are more', async () => {
  const model = await addModel();
  const metrics = Object.fromEntries(Array.from({ length: 1000 }, (_, i) => [`${i}`.padEnd(256, '\u{1f600}'), 1]));
  for (let row = 0; row < 3; row++) await addLog(model, { metrics });
  const listed = await logs.page(model, null, 100, { split: null, step: null });
  expect([listed?.rows.length, listed?.hasMore]).toEqual([2, true]);
  const history = await logs.history(model, null, 100);
  expect([history?.rows.length, history?.hasMore]).toEqual([2, true]);
  const rest = await logs.history(model, history?.rows[1]?.id ?? '', 100);
  expect([rest?.rows.length, rest?.hasMore]).toEqual([1, false]);
  const bytes = (await models.metricBytes([`${model}-0`])).get(`${model}-0`);
  expect(bytes).toBeGreaterThan(500_000);
});

test('a checkpoint takes 2,000 metrics and no more; what would bring more is not kept at all', async () => {
  const [model, other] = [await addModel(), await addModel()];
  const many = (from: number, count: number) =>
    Object.fromEntries(Array.from({ length: count }, (_, i) => [`m${from + i}`, i]));
  await addLog(other, { metrics: many(0, 1000) });
  await addLog(model, { metrics: many(0, 2000) });
  await addLog(model, { metrics: { m0: 5 } });
  await expect(addLog(model, { metrics: { more: 1 } })).rejects.toThrow(TooManyMetricsError);
  const metrics = await metricsOf(`${model}-0`);
  expect([Object.keys(metrics ?? {}).length, metrics?.['m0'], metrics?.['m1999']]).toEqual([2000, 5, 1999]);
  expect((await logs.page(model, null, 9, { split: null, step: null }))?.rows).toHaveLength(2);
  expect((await logs.history(model, null, 9))?.rows).toHaveLength(2);
});

/** Rows of a run as a long one has them, behind the API's back. */
async function addRun(modelId: string, rows: number): Promise<void> {
  const job = await addJob(modelId);
  const numbers = sql`with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < ${rows})`;
  await sql`${numbers} insert into job_events (job_id, sequence, key, id, type, data, created_at)
    select ${job}, n, 'k' || n, ${job} || n, 'training_metrics', '{"é":' || n || '}', ${AT} from numbers`.execute(
    database.db,
  );
  await sql`${numbers} insert into run_history (id, model_id, step, key, data, created_at)
    select ${job} || n, ${modelId}, n, 'k' || n, '{"loss":' || n || '}', ${AT} from numbers`.execute(database.db);
}

async function countedBytes(): Promise<number | undefined> {
  const row = await database.db
    .selectFrom('entity_storage')
    .select('bytes')
    .where('entity', '=', 'e')
    .executeTakeFirst();
  return row?.bytes;
}

test('a model with a long run goes piece by piece: others are answered meanwhile', async () => {
  const [long, other] = [await addModel(), await addModel()];
  await addRun(long, 5000);
  await addRun(other, 10);
  let answers = 0;
  const removed = models.remove(long, 'e', LATER).then((gone) => ({ gone, answers }));
  for (let left = 20; left > 0; left--) {
    expect(await models.find(other)).not.toBeNull();
    answers++;
  }
  const { gone, answers: meanwhile } = await removed;
  expect(gone).toMatchObject({ deletedCheckpoints: 1, first: true });
  expect(meanwhile).toBeGreaterThanOrEqual(5);
  expect(await models.find(long)).toBeNull();
  expect(await countedBytes()).toBe((await storedBytes(database.db)).get('e'));
  expect(await models.remove(long, 'e', LATER)).toMatchObject({ deletedCheckpoints: 1, first: false });
});

test('a removal that the server did not live to end goes on at the next start, and no other', async () => {
  const [long, other] = [await addModel(), await addModel()];
  await addRun(long, 5000);
  await addRun(other, 3000);
  expect(await models.remove(long, 'somebody else', LATER)).toBeNull();
  const cut = models.remove(long, 'e', LATER).catch(() => 'cut off');
  for (let left = 3; left > 0; left--) await models.find(other);
  await database.close();
  expect(await cut).toBe('cut off');
  database = await Database.open(directory);
  models = new ModelRepository(database.db);
  expect(await models.find(long)).not.toBeNull();
  await models.finishRemovals();
  expect((await models.all()).models.map(({ id }) => id)).toEqual([other]);
  expect(await countedBytes()).toBe((await storedBytes(database.db)).get('e'));
  expect(await models.remove(long, 'e', AT)).toMatchObject({ deletedCheckpoints: 1, first: false });
});
