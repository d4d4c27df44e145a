/** Jobs before they are accepted: what is refused before it costs, and what is answered without being read again. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { StorageRepository } from '../../../src/control/store/storage-repository.ts';
import type { JobService } from '../../../src/control/training/jobs/job-service.ts';
import { createModel, group, startPlane, type Plane } from './plane.ts';

const QUOTA = 1_000_000;
const ARTIFACTS = '/v1/preview/artifacts';

let plane: Plane;
let jobs: JobService;
let modelId: string;
beforeAll(async () => {
  plane = await startPlane({ paused: true, settings: { maxEntityStorageBytes: QUOTA } });
  jobs = plane.side.services.jobs;
  ({ id: modelId } = await createModel(plane, 'agent'));
}, 120_000);
afterEach(() => vi.restoreAllMocks());
afterAll(() => plane?.end());

async function* body(): AsyncGenerator<Uint8Array> {
  yield Buffer.from(JSON.stringify({ model_id: modelId, trajectory_groups: [group([1, 0])] }));
}

const unread = (): AsyncIterable<Uint8Array> => ({
  [Symbol.asyncIterator]: () => ({ next: () => Promise.reject(new Error('It was read.')) }),
});

const files = () => ['inputs', 'drafts'].map((area) => readdirSync(join(plane.dataDir, 'blobs', area)).length);
const full = (used: number) => vi.spyOn(StorageRepository.prototype, 'usedBytes').mockResolvedValue(used);

/** The URL of rows to train on, and its artifact. */
async function rows(name: string): Promise<{ url: string; id: string }> {
  const { id } = (await plane.ok(ARTIFACTS, { project: 'p', name })) as { id: string };
  const messages = [
    { role: 'user', content: 'hi' },
    { role: 'assistant', content: name },
  ];
  await plane.call(`${ARTIFACTS}/${id}/files/train.jsonl`, { method: 'PUT', body: JSON.stringify({ messages }) });
  const { url } = await plane.json(`${ARTIFACTS}/${id}/commit`, { method: 'POST' });
  return { id, url: String(url) };
}

test('bodies and files for an entity that is full are not read; one that turns out too large is not kept', async () => {
  const { url } = await rows('full');
  const before = files();
  full(QUOTA);
  await expect(jobs.createRl('default', unread(), null)).rejects.toMatchObject({ code: 'quota_exceeded' });
  const missing = { model_id: modelId, training_data_url: 'wandb-artifact:///default/p/never:v0' };
  await expect(jobs.createSft('default', missing, null, 'd')).rejects.toMatchObject({ code: 'quota_exceeded' });
  vi.restoreAllMocks();
  full(QUOTA - 1);
  await expect(jobs.createRl('default', body(), null)).rejects.toMatchObject({ code: 'quota_exceeded' });
  const sft = { model_id: modelId, training_data_url: url };
  await expect(jobs.createSft('default', sft, null, 'd')).rejects.toMatchObject({ code: 'quota_exceeded' });
  expect(files()).toEqual(before);
});

test('a repeated job on examples is answered though its data have gone and the entity is full; its key is not that of other jobs', async () => {
  const { url, id } = await rows('repeated');
  const sft = { model_id: modelId, training_data_url: url };
  const first = await jobs.createSft('default', sft, 'key', 'digest');
  await plane.json(`${ARTIFACTS}/${id}`, { method: 'DELETE' });
  full(QUOTA);
  expect(await jobs.createSft('default', sft, 'key', 'digest')).toBe(first);
  await expect(jobs.createSft('default', sft, 'key', 'other')).rejects.toThrow('another request body');
  vi.restoreAllMocks();
  expect(await jobs.createRl('default', body(), 'key')).not.toBe(first);
});

test('a repeated job is answered though the completions that it names are forgotten, until its model goes', async () => {
  const { id: model } = await createModel(plane, 'forgetful');
  const named = (reward: number) => {
    const message = { role: 'assistant', content: 'x' };
    const choice = { finish_reason: 'stop', index: 0, message, request_id: 'chatcmpl-once' };
    return { messages_and_choices: [{ role: 'user', content: 'hi' }, choice], reward };
  };
  const text = JSON.stringify({ model_id: model, trajectory_groups: [{ trajectories: [named(1), named(0)] }] });
  async function* source(): AsyncGenerator<Uint8Array> {
    yield Buffer.from(text);
  }
  plane.samples.remember('chatcmpl-once', 'default', [Int32Array.from([1, 2])], [{ ids: [3], logprobs: [-1] }]);
  const first = await jobs.createRl('default', source(), 'named');
  plane.samples.remember('chatcmpl-once', 'default', [new Int32Array()], [null]);
  await expect(jobs.createRl('default', source(), 'unnamed')).rejects.toMatchObject({
    details: [{ msg: expect.stringContaining('is not remembered') as string }],
  });
  const before = files();
  expect(await jobs.createRl('default', source(), 'named')).toBe(first);
  expect(files()).toEqual(before);
  plane.samples.remember('chatcmpl-once', 'default', [Int32Array.from([1, 2])], [{ ids: [3], logprobs: [-1] }]);
  await plane.json(`/v1/preview/models/${model}`, { method: 'DELETE' });
  await expect(jobs.createRl('default', source(), 'named')).rejects.toMatchObject({ code: 'not_found' });
});

test('a key has 256 characters at most, printable ones', async () => {
  expect(await jobs.createRl('default', body(), 'k'.repeat(256))).toBeDefined();
  for (const key of ['', 'k'.repeat(257), 'a b', 'ä'])
    await expect(jobs.createRl('default', unread(), key)).rejects.toThrow('An idempotency key has 1 to 256');
});
