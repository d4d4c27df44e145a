/** What deletes leave on the disk and in the engine, when that goes, and what becomes of models under other weights. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { FolderBlobStore } from '../../../src/control/store/blob-store.ts';
import { readAdapter, writeCheckpoint } from '../../../src/control/training/checkpoint-files.ts';
import { BASE, createModel, finished, group, startPlane, type Plane } from './plane.ts';

/** Longer than a request waits for its adapter. */
const GRACE_MS = 120_000;

let plane: Plane;
beforeEach(async () => {
  plane = await startPlane({ paused: true });
});
afterEach(async () => {
  vi.restoreAllMocks();
  await plane.end();
});

const inArea = (area: string) => readdirSync(join(plane.dataDir, 'blobs', area)).length;

/** `work`, then the time in which requests that were let in before it still load their adapter. */
async function withGrace(work: () => Promise<unknown>, during: () => void): Promise<void> {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    await work();
    const removals = vi.spyOn(FolderBlobStore.prototype, 'remove');
    vi.advanceTimersByTime(GRACE_MS - 1);
    expect(removals).not.toHaveBeenCalled();
    during();
    vi.advanceTimersByTime(1);
    expect(removals).toHaveBeenCalledTimes(1);
  } finally {
    vi.useRealTimers();
  }
}

test('the engine forgets a step that is deleted at once; its files stay for requests that were let in before, then go', async () => {
  const { id } = await createModel(plane, 'agent');
  await createModel(plane, 'other');
  const { models } = plane.side.services;
  // It is down: it has forgotten anyway.
  const unload = vi.spyOn(plane.engine_, 'unloadAdapter').mockRejectedValue(new Error('no engine'));
  expect(inArea('adapters')).toBe(2);
  await withGrace(
    async () => {
      expect(await models.deleteCheckpoints(id, 'default', [0, 7, 0, 7])).toEqual({ deleted: 1, notFound: [7] });
      expect(await plane.side.resolver.resolve('default/p/agent', 'default')).toBeNull();
      expect(unload).toHaveBeenCalledTimes(1);
    },
    () => expect(inArea('adapters')).toBe(2),
  );
  await expect.poll(() => inArea('adapters')).toBe(1);
});

test('the data and logs of a model that is deleted go at once, its steps when nobody can load them any more', async () => {
  const { id } = await createModel(plane, 'agent');
  const { id: other } = await createModel(plane, 'other');
  for (const model of [id, other]) {
    await plane.ok('/v1/preview/training-jobs', { model_id: model, trajectory_groups: [group([1, 0])] });
    await plane.ok(`/v1/preview/models/${model}/log`, { split: 'val', trajectory_groups: [group([1])] });
  }
  const unload = vi.spyOn(plane.engine_, 'unloadAdapter');
  await withGrace(
    () => plane.side.services.models.delete(id, 'default'),
    () => expect(['inputs', 'trajectories', 'adapters'].map(inArea)).toEqual([1, 1, 2]),
  );
  expect(unload).toHaveBeenCalledTimes(1);
  await expect.poll(() => inArea('adapters')).toBe(1);
});

test('a job that has ended leaves its step and no other file', async () => {
  const { id } = await createModel(plane, 'agent');
  const groups = Array.from({ length: 4 }, () => group([1, 0, 0.5]));
  const config = { packed_sequence_length: 32, logprob_calculation_chunk_size: 32 };
  const body = { model_id: id, trajectory_groups: groups, experimental_config: config };
  const { id: job } = await plane.ok('/v1/preview/training-jobs', body);
  await plane.side.start();
  expect((await finished(plane, String(job))).length).toBeGreaterThan(3);
  const areas = () => ['inputs', 'snapshots', 'drafts', 'adapters'].map(inArea);
  await expect.poll(areas).toEqual([0, 0, 0, 2]);
});

test('what is refused, or is a job that was accepted before, keeps no files', async () => {
  const { id } = await createModel(plane, 'agent');
  const headers = { 'idempotency-key': 'once' };
  const body = { model_id: id, trajectory_groups: [group([1, 0])] };
  const post = (more: object = {}) => plane.post('/v1/preview/training-jobs', { ...body, ...more }, headers);
  const first = (await (await post()).json()) as { id: string };
  expect(await (await post()).json()).toMatchObject({ id: first.id });
  expect((await post({ experimental_config: { learning_rate: 0.5 } })).status).toBe(422);
  await plane.database.db.deleteFrom('models').execute();
  expect((await plane.post('/v1/preview/training-jobs', body)).status).toBe(404);
  expect((await plane.post(`/v1/preview/models/${id}/log`, { split: 'v', trajectory_groups: [] })).status).toBe(404);
  expect(['inputs', 'trajectories', 'drafts'].map(inArea)).toEqual([1, 0, 0]);
});

test('a model that was made on other base weights stays, and neither trains nor is returned as one that could', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'tandem-other-base-'));
  const first = await startPlane({ paused: true, dataDir });
  const { id } = await createModel(first, 'agent');
  const accepted = await first.ok('/v1/preview/training-jobs', { model_id: id, trajectory_groups: [group([1, 0])] });
  await first.database.db.updateTable('models').set({ base_digest: 'of other weights' }).execute();
  await first.end();
  const second = await startPlane({ paused: true, dataDir });
  try {
    const request = { project: 'p', name: 'agent', base_model: BASE, return_existing: true };
    for (const refused of [
      await second.post('/v1/preview/models', request),
      await second.post('/v1/preview/training-jobs', { model_id: id, trajectory_groups: [group([1, 0])] }),
    ]) {
      expect(refused.status).toBe(409);
      expect(await refused.text()).toContain('was made on other base weights');
    }
    // A job of before ends, and says why.
    await second.side.start();
    expect((await finished(second, String(accepted['id']))).map(({ type, data }) => [type, data])).toEqual([
      ['training_failed', { error_message: 'The model was made on other base weights than the server has now.' }],
    ]);
    const page = await second.json(`/v1/preview/models/${id}/checkpoints`);
    expect(page['data']).toHaveLength(1);
  } finally {
    await second.end();
    rmSync(dataDir, { recursive: true });
  }
});

test('a model whose adapters the server cannot serve is not trained for nothing, and says why', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'tandem-unservable-'));
  const first = await startPlane({ paused: true, dataDir });
  const { id } = await createModel(first, 'agent');
  const accepted = await first.ok('/v1/preview/training-jobs', { model_id: id, trajectory_groups: [group([1, 0])] });
  await first.end();
  const servingObstacle = (rank: number) => (rank > 4 ? `Rank ${rank} is too much.` : null);
  const second = await startPlane({ dataDir, servingObstacle, settings: { loraRank: 4 } });
  try {
    const job = { model_id: id, trajectory_groups: [group([1, 0])] };
    const refused = [
      await second.post('/v1/preview/training-jobs', job),
      await second.post('/v1/preview/models', { project: 'p', name: 'agent', base_model: BASE, return_existing: true }),
    ];
    for (const response of refused) {
      expect([response.status, await response.text()]).toEqual([409, expect.stringContaining('Rank 8 is too much.')]);
    }
    expect(await finished(second, String(accepted['id']))).toMatchObject([
      { type: 'training_failed', data: { error_message: 'Rank 8 is too much.' } },
    ]);
    expect((await second.json(`/v1/preview/models/${id}/checkpoints`))['data']).toHaveLength(1);
    const messages = [{ role: 'user', content: 'Hi' }];
    const chat = await second.post('/v1/chat/completions', { model: 'default/p/agent', messages });
    expect([chat.status, await chat.text()]).toEqual([400, expect.stringContaining('Rank 8 is too much.')]);
    expect(await second.side.resolver.list('default')).toEqual([]);
    // One of a rank that it serves is made.
    await createModel(second, 'smaller');
  } finally {
    await second.end();
  }
  const third = await startPlane({ dataDir, servingObstacle });
  try {
    const response = await third.post('/v1/preview/models', { project: 'p', name: 'new', base_model: BASE });
    expect([response.status, await response.text()]).toEqual([409, expect.stringContaining('Rank 8 is too much.')]);
  } finally {
    await third.end();
    rmSync(dataDir, { recursive: true });
  }
});

test.each([
  ['as asked, though the scale went through single precision', 7, 49, 7],
  ['computed from a scale of its own', 16, 8, 32],
])('the alpha of an adapter is that %s', async (_, asked, rank, written) => {
  const directory = mkdtempSync(join(tmpdir(), 'tandem-alpha-'));
  const scale = Math.fround(written / rank);
  const factors = [
    { layer: 0, module: 'q' as const, rank, a: new Float32Array(rank * 8), b: new Float32Array(8 * rank) },
  ];
  try {
    const state = { weights: { scale, factors }, optimizer: null };
    await writeCheckpoint(directory, { state, baseModel: 'm', kind: 'rl', alpha: asked });
    const config = readFileSync(join(directory, 'adapter_config.json'), 'utf8');
    expect(JSON.parse(config)).toMatchObject({ r: rank, lora_alpha: written });
    expect(Math.fround((await readAdapter(directory)).scale)).toBe(scale);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

test('a model keeps the shape that it was made with: without a step it begins again as it did', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'tandem-shape-'));
  const first = await startPlane({ paused: true, dataDir, settings: { loraRank: 4, loraAlpha: 12 } });
  const { id } = await createModel(first, 'agent');
  await first.side.services.models.deleteCheckpoints(id, 'default', [0]);
  await first.end();
  const second = await startPlane({ dataDir, settings: { loraRank: 2, loraAlpha: 2 } });
  try {
    const job = await second.ok('/v1/preview/training-jobs', { model_id: id, trajectory_groups: [group([1, 0])] });
    expect((await finished(second, String(job['id']))).at(-1)?.type).toBe('training_ended');
    const [folder = ''] = readdirSync(join(dataDir, 'blobs', 'adapters'));
    const config = readFileSync(join(dataDir, 'blobs', 'adapters', folder, 'adapter_config.json'), 'utf8');
    expect(JSON.parse(config)).toMatchObject({ r: 4, lora_alpha: 12 });
  } finally {
    await second.end();
    rmSync(dataDir, { recursive: true });
  }
});
