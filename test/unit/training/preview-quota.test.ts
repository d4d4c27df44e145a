/** The storage of an entity: what counts, what is refused, what makes room. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readdirSync } from 'node:fs';
import { StorageRepository } from '../../../src/control/store/storage-repository.ts';
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
