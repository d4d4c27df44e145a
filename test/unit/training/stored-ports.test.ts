/** What a running job writes: files first, rows after them, and nothing of what did not come through. */
import { randomUUID } from 'node:crypto';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { FolderBlobStore, type BlobDraft, type BlobStore } from '../../../src/control/store/blob-store.ts';
import { Database } from '../../../src/control/store/database.ts';
import { JobRepository } from '../../../src/control/store/job-repository.ts';
import { ModelRepository } from '../../../src/control/store/model-repository.ts';
import { StorageRepository } from '../../../src/control/store/storage-repository.ts';
import { StoredCheckpoints, StoredSnapshots } from '../../../src/control/training/jobs/stored-ports.ts';
import { registeredModel } from '../../../src/control/training/models/records.ts';
import { ModelRegistry } from '../../../src/control/training/models/registry.ts';
import { encodeTensors } from '../../../src/control/training/tensor-file.ts';
import { rowBytes } from '../store/row-bytes.ts';

const AT = '2026-01-01T00:00:00.000Z';
const MODEL = randomUUID();
const JOB = randomUUID();

/** Seals that fail as on a disk that fails. */
class FailingStore extends FolderBlobStore {
  fails = false;
  override async draft(area: Parameters<BlobStore['draft']>[0]): Promise<BlobDraft> {
    const draft = await super.draft(area);
    const { key, directory } = draft;
    const seal = () => (this.fails ? Promise.reject(new Error('EIO')) : draft.seal());
    return { key, directory, seal, write: (...given) => draft.write(...given), discard: () => draft.discard() };
  }
}

let directory: string;
let database: Database;
let blobs: FailingStore;
let models: ModelRepository;
let jobs: JobRepository;
let registry: ModelRegistry;
let snapshots: StoredSnapshots;
let checkpoints: StoredCheckpoints;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-ports-'));
  database = await Database.open(directory);
  blobs = new FailingStore(join(directory, 'blobs'));
  models = new ModelRepository(database.db);
  jobs = new JobRepository(database.db);
  registry = new ModelRegistry();
  const model = {
    id: MODEL,
    entity: 'e',
    project: 'p',
    name: 'n',
    baseModel: 'b',
    baseDigest: 'd',
    runId: 'r',
    lora: {},
  };
  const first = {
    id: randomUUID(),
    modelId: MODEL,
    jobId: null,
    step: 0,
    version: 'v',
    blobKey: 'adapters/0',
    bytes: 0,
  };
  await models.create({ ...model, nextStep: 1, createdAt: AT }, { ...first, createdAt: AT });
  registry.add(registeredModel({ ...model, nextStep: 1, createdAt: AT }, 'd'), []);
  const job = {
    id: JOB,
    modelId: MODEL,
    entity: 'e',
    kind: 'rl' as const,
    config: {},
    inputKey: 'inputs/0',
    inputBytes: 0,
  };
  await jobs.accept({ ...job, references: [], createdAt: AT }, null, 1);
  await jobs.start(JOB, AT);
  snapshots = new StoredSnapshots(jobs, blobs, pino({ level: 'silent' }));
  checkpoints = new StoredCheckpoints(models, jobs, blobs, registry);
});
afterEach(async () => {
  vi.restoreAllMocks();
  await database.close();
  rmSync(directory, { recursive: true, force: true });
});

const left = (area: string) => readdirSync(join(directory, 'blobs', area)).length;
const encoded = (step: number) => encodeTensors({ tensors: [], metadata: { step: String(step) } });
const loaded = async () => (await snapshots.load(JOB))?.metadata['step'];

test('a snapshot that does not come through leaves the one before, and no file of its own', async () => {
  expect(await loaded()).toBeUndefined();
  await snapshots.save(JOB, encoded(1));
  await snapshots.save(JOB, encoded(2));
  expect([await loaded(), left('snapshots')]).toEqual(['2', 1]);
  blobs.fails = true;
  await expect(snapshots.save(JOB, encoded(3))).rejects.toThrow('EIO');
  expect([await loaded(), left('snapshots'), left('drafts')]).toEqual(['2', 1, 0]);
  blobs.fails = false;
  vi.spyOn(jobs, 'setSnapshot').mockRejectedValueOnce(new Error('database is locked'));
  await expect(snapshots.save(JOB, encoded(4))).rejects.toThrow('locked');
  expect([await loaded(), left('snapshots'), left('drafts')]).toEqual(['2', 1, 0]);
});

test('a snapshot that cannot be read for now is not taken for a damaged one', async () => {
  await snapshots.save(JOB, encoded(1));
  vi.spyOn(blobs, 'path').mockReturnValueOnce(directory);
  expect(await loaded()).toBeUndefined();
  vi.spyOn(blobs, 'path').mockImplementationOnce(() => {
    throw Object.assign(new Error('too many open files'), { code: 'EMFILE' });
  });
  await expect(loaded()).rejects.toThrow('too many open files');
  expect(await loaded()).toBe('1');
});

test('a step is listed when its files are in place, counts with their size, and is the same for who commits again', async () => {
  await checkpoints.stage(JOB);
  const folder = await checkpoints.stage(JOB);
  // What was staged before has gone.
  expect(left('drafts')).toBe(1);
  writeFileSync(join(folder, 'adapter'), Buffer.alloc(7));
  const step = await checkpoints.commit(JOB, folder, 'version');
  expect(readdirSync(step.adapter.directory)).toEqual(['adapter']);
  expect([step.step, left('adapters'), left('drafts')]).toEqual([1, 1, 0]);
  const used = await new StorageRepository(database.db).usedBytes('e');
  expect(used - (await rowBytes(database.db, 'e'))).toBe(7);
  expect(await checkpoints.latest(MODEL)).toEqual(step);
  expect(await checkpoints.commit(JOB, await checkpoints.stage(JOB), 'other')).toEqual(step);
  await checkpoints.unstage(JOB);
  expect([left('adapters'), left('drafts'), await checkpoints.nextStep(MODEL)]).toEqual([1, 0, 2]);
});

test('a step whose files cannot be put in place is not listed, and leaves nothing', async () => {
  blobs.fails = true;
  const folder = await checkpoints.stage(JOB);
  await expect(checkpoints.commit(JOB, folder, 'version')).rejects.toThrow('EIO');
  await checkpoints.unstage(JOB);
  await checkpoints.unstage(JOB);
  expect([await checkpoints.ofJob(JOB), await checkpoints.latest(MODEL)]).toEqual([null, null]);
  expect([left('adapters'), left('drafts')]).toEqual([0, 0]);
});

test('a step that was listed although its commit is told as failed keeps its files, and serves', async () => {
  const folder = await checkpoints.stage(JOB);
  const publish = models.publish.bind(models);
  vi.spyOn(models, 'publish').mockImplementationOnce(async (checkpoint) => {
    await publish(checkpoint);
    throw new Error('disk I/O error');
  });
  await expect(checkpoints.commit(JOB, folder, 'version')).rejects.toThrow('disk I/O error');
  await checkpoints.unstage(JOB);
  expect(left('adapters')).toBe(1);
  // The job runs again, and finds what it made: from then on it serves.
  const made = await checkpoints.ofJob(JOB);
  expect(readdirSync(made?.adapter.directory ?? '')).toEqual([]);
  expect(await checkpoints.latest(MODEL)).toEqual(made);
});

test('a job has its step or is cancelled, whichever comes first', async () => {
  expect(await jobs.requestCancel(JOB)).toBe(true);
  await expect(checkpoints.commit(JOB, await checkpoints.stage(JOB), 'version')).rejects.toThrow('was cancelled');
  await checkpoints.unstage(JOB);
  expect([await checkpoints.ofJob(JOB), await checkpoints.nextStep(MODEL), left('adapters')]).toEqual([null, 1, 0]);
  await database.db.updateTable('jobs').set({ cancel_requested: 0 }).execute();
  await checkpoints.commit(JOB, await checkpoints.stage(JOB), 'version');
  expect(await jobs.requestCancel(JOB)).toBe(false);
  expect((await jobs.find(JOB))?.cancelRequested).toBe(false);
});

test('where the model has gone, so have the job and what it was about to list', async () => {
  const folder = await checkpoints.stage(JOB);
  const find = jobs.find.bind(jobs);
  vi.spyOn(jobs, 'find').mockImplementationOnce(async (id) => {
    const job = await find(id);
    await models.remove(MODEL, 'e', AT);
    return job;
  });
  await expect(checkpoints.commit(JOB, folder, 'version')).rejects.toThrow('has gone');
  expect([left('adapters'), left('drafts')]).toEqual([0, 0]);
  for (const asked of [snapshots.load(JOB), checkpoints.nextStep(MODEL)])
    await expect(asked).rejects.toThrow('has gone');
});
