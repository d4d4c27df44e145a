/** The storage of an entity: what counts, what is refused, what makes room. */
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { mkdtempSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { StorageRepository } from '../../../src/control/store/storage-repository.ts';
import { rowBytes } from '../store/row-bytes.ts';
import { BASE, createModel, finished, group, startPlane, type Plane } from './plane.ts';

const MODELS = '/v1/preview/models';
const JOBS = '/v1/preview/training-jobs';
const ARTIFACTS = '/v1/preview/artifacts';
const QUOTA = 64 * 1024;

let plane: Plane;
beforeAll(async () => {
  plane = await startPlane({ settings: { maxEntityStorageBytes: QUOTA } });
}, 120_000);
afterAll(() => plane?.end());

const rl = (modelId: string) => ({ model_id: modelId, trajectory_groups: [group([1, 0, 0.5])] });

async function upload(file: string, bytes: number): Promise<Response> {
  return plane.call(`${ARTIFACTS}/${file}/files/train.jsonl`, { method: 'PUT', body: Buffer.alloc(bytes, 0x20) });
}

test('a full entity is refused by name, others are not, its accepted job ends, and a delete makes room', async () => {
  const { id: modelId } = await createModel(plane, 'agent');
  const artifact = String((await plane.ok(ARTIFACTS, { project: 'p', name: 'data' }))['id']);
  // More than all of it: refused with its size, and nothing stays.
  const large = await upload(artifact, QUOTA + 1);
  expect([large.status, await large.json()]).toEqual([
    403,
    {
      error: {
        message: expect.stringMatching(/stores .* of the 0\.1 MiB .* takes 0\.1 MiB/) as string,
        type: 'PermissionDeniedError',
        param: null,
        code: 403,
      },
    },
  ]);
  expect(readdirSync(`${plane.dataDir}/blobs/uploads`)).toEqual([]);
  const used = () => new StorageRepository(plane.database.db).usedBytes('default');
  expect((await upload(artifact, QUOTA - (await used()))).status).toBe(200);
  const keyed = { 'idempotency-key': 'before' };
  for (const response of [
    await plane.post(`${MODELS}/${modelId}/log`, { split: 'val', trajectory_groups: [group([1])] }),
    await plane.post(JOBS, rl(modelId)),
    await plane.post(JOBS, rl(modelId), keyed),
    await plane.post(MODELS, { project: 'p', name: 'second', base_model: BASE }),
    await upload(artifact, 1),
    await plane.post(ARTIFACTS, { project: 'p', name: 'more' }),
  ]) {
    expect(response.status, response.url).toBe(403);
    expect(await response.json()).toMatchObject({
      error: { message: expect.stringContaining('The entity stores') as string },
    });
  }
  const other = { ...plane.as('rivals'), 'content-type': 'application/json' };
  const theirs = { project: 'p', name: 'agent', base_model: BASE };
  expect((await plane.call(MODELS, { method: 'POST', body: JSON.stringify(theirs), headers: other })).status).toBe(200);
  expect((await plane.call(`${ARTIFACTS}/${artifact}`, { method: 'DELETE' })).status).toBe(200);
  const job = String(
    (
      await plane.json(JOBS, {
        method: 'POST',
        body: JSON.stringify(rl(modelId)),
        headers: { ...keyed, 'content-type': 'application/json' },
      })
    )['id'],
  );
  expect((await finished(plane, job)).at(-1)?.type).toBe('training_ended');
  // Repeated when all is full again, it is the same job.
  const again = String((await plane.ok(ARTIFACTS, { project: 'p', name: 'data' }))['id']);
  expect((await upload(again, QUOTA - (await used()))).status).toBe(200);
  const repeated = await plane.post(JOBS, rl(modelId), keyed);
  expect([repeated.status, await repeated.json()]).toEqual([200, { id: job }]);
});

test('a step that waiting jobs compare with counts once, and until the last of them ends where it is deleted meanwhile', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'tandem-compared-'));
  const first = await startPlane({ dataDir });
  const { id: modelId } = await createModel(first, 'agent');
  await finished(first, String((await first.ok(JOBS, rl(modelId)))['id']));
  await first.end();
  const paused = await startPlane({ dataDir, paused: true });
  try {
    const { db } = paused.database;
    const used = async () => (await new StorageRepository(db).usedBytes('default')) - (await rowBytes(db, 'default'));
    const steps = await used();
    await paused.ok(JOBS, rl(modelId));
    const input = (await used()) - steps;
    const config = { kl_penalty_coef: 0.1, kl_penalty_reference_step: 1 };
    const comparing = { ...rl(modelId), experimental_config: config };
    const jobs = [await paused.ok(JOBS, comparing), await paused.ok(JOBS, comparing)].map(({ id }) => String(id));
    expect(await used()).toBe(steps + 3 * input);
    const deleted = { method: 'DELETE', body: '{"steps": [0, 1]}', headers: { 'content-type': 'application/json' } };
    expect(await paused.json(`${MODELS}/${modelId}/checkpoints`, deleted)).toMatchObject({ deleted_count: 2 });
    const kept = linkedBytes(join(dataDir, 'blobs', 'inputs'));
    for (const [ended, id] of jobs.entries()) {
      expect(await used()).toBe(kept + (3 - ended) * input);
      expect((await paused.post(`${JOBS}/${id}/cancel`, {})).status).toBe(200);
    }
    expect(await used()).toBe(input);
  } finally {
    await paused.end();
    rmSync(dataDir, { recursive: true });
  }
});

test('rows of the database fill an entity as files do, and those of a job that was accepted are never left out', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'tandem-rows-'));
  const settings = { maxEntityStorageBytes: QUOTA };
  const paused = await startPlane({ dataDir, paused: true, settings });
  const { id: modelId } = await createModel(paused, 'agent');
  const job = String((await paused.ok(JOBS, rl(modelId)))['id']);
  const log = () => paused.post(`${MODELS}/${modelId}/log`, { split: 'val', trajectory_groups: [] });
  let logs = 0;
  while ((await log()).status === 200) logs++;
  // Each has a row of its own and one of the run.
  expect(logs).toBeLessThan(QUOTA / 1024);
  const artifact = { project: 'p', name: 'data', metadata: { note: 'x'.repeat(1000) } };
  expect((await paused.post(ARTIFACTS, artifact)).status).toBe(403);
  await paused.end();
  const going = await startPlane({ dataDir, settings });
  try {
    const types = (await finished(going, job)).map(({ type }) => type);
    expect(types).toEqual(['training_started', 'gradient_step', 'training_ended']);
    expect((await going.post(JOBS, rl(modelId))).status).toBe(403);
    expect((await going.call(`${MODELS}/${modelId}`, { method: 'DELETE' })).status).toBe(200);
    // It is remembered that it was there.
    expect(await new StorageRepository(going.database.db).usedBytes('default')).toBe(512);
    await createModel(going, 'agent');
  } finally {
    await going.end();
    rmSync(dataDir, { recursive: true });
  }
});

test('files that a delete leaves on the disk for a while take as much as may be stored, and no more', async () => {
  const held: (() => void)[] = [];
  const real = setTimeout;
  const later = vi.spyOn(globalThis, 'setTimeout').mockImplementation(((run: () => void, ms: number) => {
    if (ms !== 120_000) return real(run, ms);
    held.push(run);
    return { unref: () => undefined };
  }) as unknown as typeof setTimeout);
  const adapters = `${plane.dataDir}/blobs/adapters`;
  const others = readdirSync(adapters).length;
  const headers = { ...plane.as('rivals'), 'content-type': 'application/json' };
  const body = JSON.stringify({ project: 'p', name: 'again', base_model: BASE });
  const create = () => plane.call(MODELS, { method: 'POST', body, headers });
  try {
    let made = await create();
    while (made.status === 200 && held.length < 50) {
      const { id } = (await made.json()) as { id: string };
      expect((await plane.call(`${MODELS}/${id}`, { method: 'DELETE', headers })).status).toBe(200);
      made = await create();
    }
    // Two minutes, which clients do not believe in a header.
    expect([made.status, made.headers.get('retry-after')]).toEqual([429, '59']);
    expect(await made.json()).toMatchObject({
      error: {
        message: expect.stringMatching(/that were deleted are still on the disk.* again in 1[12]\d s\.$/) as string,
      },
    });
    for (const remove of held) remove();
    await vi.waitFor(async () => expect((await create()).status).toBe(200));
    expect(readdirSync(adapters).length).toBe(others + 1);
  } finally {
    later.mockRestore();
  }
});

/** Of the files that more than one of the folders has. */
function linkedBytes(folder: string): number {
  const files = readdirSync(folder, { recursive: true }).map((file) => statSync(join(folder, String(file))));
  const linked = new Map(files.filter((file) => file.isFile() && file.nlink > 1).map(({ ino, size }) => [ino, size]));
  const bytes = [...linked.values()].reduce((sum, size) => sum + size, 0);
  expect(bytes).toBeGreaterThan(0);
  return bytes;
}
