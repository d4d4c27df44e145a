/** Logs of a model: whose they are, what is refused before it costs, and pages of them and of the run. */
import { randomUUID } from 'node:crypto';
import { readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { StorageRepository } from '../../../src/control/store/storage-repository.ts';
import type { LogService } from '../../../src/control/training/logs/log-service.ts';
import { createModel, group, startPlane, type Plane } from './plane.ts';

const QUOTA = 1_000_000;

let plane: Plane;
let logs: LogService;
let modelId: string;
let runId: string;
beforeAll(async () => {
  plane = await startPlane({ paused: true, settings: { maxEntityStorageBytes: QUOTA } });
  logs = plane.side.services.logs;
  ({ id: modelId, run_id: runId } = await createModel(plane, 'agent'));
}, 120_000);
afterEach(() => vi.restoreAllMocks());
afterAll(() => plane?.end());

async function* body(more: object = {}): AsyncGenerator<Uint8Array> {
  yield Buffer.from(JSON.stringify({ split: 'val', trajectory_groups: [group([1])], ...more }));
}

const unread = (): AsyncIterable<Uint8Array> => ({
  [Symbol.asyncIterator]: () => ({ next: () => Promise.reject(new Error('It was read.')) }),
});

const files = () => ['trajectories', 'drafts'].map((area) => readdirSync(join(plane.dataDir, 'blobs', area)).length);

test('what will be refused is not read: logs of others’ models, and of an entity that is full', async () => {
  await expect(logs.log(modelId, 'rivals', unread())).rejects.toMatchObject({ code: 'not_found' });
  vi.spyOn(StorageRepository.prototype, 'usedBytes').mockResolvedValue(QUOTA);
  await expect(logs.log(modelId, 'default', unread())).rejects.toMatchObject({ code: 'quota_exceeded' });
});

test('what is refused when it is known leaves nothing: its size, its model', async () => {
  const [before] = files();
  vi.spyOn(StorageRepository.prototype, 'usedBytes').mockResolvedValue(QUOTA - 1);
  await expect(logs.log(modelId, 'default', body())).rejects.toMatchObject({ code: 'quota_exceeded' });
  vi.restoreAllMocks();
  await expect(logs.log(modelId, 'default', body({ model_id: randomUUID() }))).rejects.toMatchObject({
    details: [{ loc: ['body', 'model_id'] }],
  });
  expect(files()).toEqual([before, 0]);
  await logs.log(modelId, 'default', body({ model_id: modelId.toUpperCase() }));
});

test('pages say that there is another, and are their owner’s alone', async () => {
  const { id: otherId } = await createModel(plane, 'other');
  const theirs = await logs.log(otherId, 'default', body());
  const made = [];
  for (const split of ['a', 'b', 'c']) made.push((await logs.log(modelId, 'default', body({ split }))).id);
  const query = { after: null, limit: 1, split: null, step: null };
  expect(await logs.page(modelId, 'default', { ...query, split: 'a' })).toMatchObject({ rows: [{}], hasMore: false });
  expect(await logs.page(modelId, 'default', { ...query, step: 1 })).toEqual({ rows: [], hasMore: false });
  const behind = await logs.page(modelId, 'default', { ...query, after: made[0] ?? '' });
  expect(behind).toMatchObject({ rows: [{ id: made[1] }], hasMore: true });
  await expect(logs.page(modelId, 'default', { ...query, after: theirs.id })).rejects.toThrow('There is no such log.');
  await expect(logs.page(modelId, 'rivals', query)).rejects.toMatchObject({ code: 'not_found' });
  expect((await logs.find(modelId, 'default', made[0] ?? '')).log.split).toBe('a');
  await expect(logs.find(modelId, 'rivals', made[0] ?? '')).rejects.toMatchObject({ code: 'not_found' });
  await expect(logs.find(modelId, 'default', theirs.id)).rejects.toMatchObject({ code: 'not_found' });
  const { rows, hasMore } = await logs.history(runId, 'default', null, 1);
  expect([rows.length, hasMore]).toEqual([1, true]);
  expect(await logs.history(runId, 'default', rows[0]?.id ?? '', 1)).toMatchObject({ rows: [{}], hasMore: true });
  await expect(logs.history(runId, 'default', randomUUID(), 1)).rejects.toThrow('There is no such row.');
  await expect(logs.history(runId, 'rivals', null, 1)).rejects.toMatchObject({ code: 'not_found' });
});

test('a log whose file the disk has lost is told as lost, before anything is answered', async () => {
  const { id: ownId } = await createModel(plane, 'lost');
  const area = join(plane.dataDir, 'blobs', 'trajectories');
  const before = new Set(readdirSync(area));
  const { id } = await logs.log(ownId, 'default', body());
  for (const name of readdirSync(area)) if (!before.has(name)) rmSync(join(area, name), { recursive: true });
  const cause = { code: 'ENOENT' };
  await expect(logs.find(ownId, 'default', id)).rejects.toMatchObject({ code: 'file_lost', cause });
});
