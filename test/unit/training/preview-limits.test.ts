/** Settings that bound what an entity may make, and what new models begin as. */
import { readdirSync, readFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { BASE, createModel, group, startPlane, type Plane } from './plane.ts';

const MODELS = '/v1/preview/models';
const JOBS = '/v1/preview/training-jobs';
const ARTIFACTS = '/v1/preview/artifacts';

let plane: Plane;
beforeAll(async () => {
  const settings = { maxOpenJobs: 2, maxModelsPerEntity: 2, loraRank: 4, loraAlpha: 12 };
  plane = await startPlane({ settings, paused: true });
}, 120_000);
afterAll(() => plane?.end());

test('--max-models-per-entity: one more is refused, an existing one is returned, others have their own; a delete makes room', async () => {
  const { id } = await createModel(plane, 'one');
  await createModel(plane, 'two');
  const body = { project: 'p', name: 'three', base_model: BASE };
  const refused = await plane.post(MODELS, body);
  expect(refused.status).toBe(409);
  expect(await refused.json()).toMatchObject({ error: { message: 'An entity may have 2 models; delete one.' } });
  expect((await createModel(plane, 'one')).id).toBe(id);
  expect((await plane.post(MODELS, body, plane.as('rivals'))).status).toBe(200);
  await plane.json(`${MODELS}/${id}`, { method: 'DELETE' });
  expect((await plane.post(MODELS, body)).status).toBe(200);
});

test('--max-open-jobs: one more is refused with 429 until another has ended', async () => {
  const { id: modelId } = await createModel(plane, 'two');
  const { id: otherId } = await createModel(plane, 'three');
  const create = (model: string) => plane.post(JOBS, { model_id: model, trajectory_groups: [group([1, 0])] });
  const ids = [];
  for (let i = 0; i < 2; i++) ids.push(String(((await (await create(modelId)).json()) as { id: string }).id));
  const refused = await create(modelId);
  expect([refused.status, refused.headers.get('retry-after')]).toEqual([429, '1']);
  expect(await refused.json()).toMatchObject({
    error: { message: 'The model has 2 jobs that have not ended; try again later.', type: 'RateLimitError' },
  });
  expect((await create(otherId)).status).toBe(200);
  expect(await plane.json(`${JOBS}/${ids[0]}/cancel`, { method: 'POST' })).toMatchObject({ status: 'cancelled' });
  expect((await create(modelId)).status).toBe(200);
  // Nothing of the refused job stays.
  expect(readdirSync(`${plane.dataDir}/blobs/drafts`)).toEqual([]);
});

test('many requests at once do not go beyond either limit', async () => {
  const entity = plane.as('rivals');
  const create = (name: string) => plane.post(MODELS, { project: 'p', name, base_model: BASE }, entity);
  // One is there already.
  const made = await Promise.all(['a', 'b', 'c', 'd'].map(create));
  expect(made.map(({ status }) => status).sort()).toEqual([200, 409, 409, 409]);
  const { id: modelId } = (await made.find(({ ok }) => ok)?.json()) as { id: string };
  const body = { model_id: modelId, trajectory_groups: [group([1, 0])] };
  const jobs = await Promise.all(Array.from({ length: 6 }, () => plane.post(JOBS, body, entity)));
  expect(jobs.map(({ status }) => status).sort()).toEqual([200, 200, 429, 429, 429, 429]);
  expect(readdirSync(`${plane.dataDir}/blobs/drafts`)).toEqual([]);
});

test('however many artifacts are begun at once, a hundred of an entity are open', async () => {
  const create = (name: string, key: string) => plane.post(ARTIFACTS, { project: 'p', name }, plane.as(key));
  const made = await Promise.all(Array.from({ length: 108 }, (_, at) => create(`a${at}`, 'rivals')));
  const refused = made.filter(({ ok }) => !ok);
  expect([made.length - refused.length, refused.map(({ status }) => status)]).toEqual([100, Array(8).fill(429)]);
  expect(await refused[0]?.json()).toMatchObject({
    error: { message: '100 artifacts are open; commit or delete one.', type: 'RateLimitError' },
  });
  expect((await create('other', 'default')).status).toBe(200);
  const { id } = (await made.find(({ ok }) => ok)?.json()) as { id: string };
  await plane.json(`${ARTIFACTS}/${id}`, { method: 'DELETE', headers: plane.as('rivals') });
  expect((await create('again', 'rivals')).status).toBe(200);
  expect((await create('more', 'rivals')).status).toBe(429);
});

test('--lora-rank and --lora-alpha shape the adapter that a model begins with', () => {
  const folder = `${plane.dataDir}/blobs/adapters`;
  const configs = readdirSync(folder).map((key) => readFileSync(`${folder}/${key}/adapter_config.json`, 'utf8'));
  expect(configs.length).toBeGreaterThan(0);
  for (const config of configs) expect(JSON.parse(config)).toMatchObject({ r: 4, lora_alpha: 12 });
});
