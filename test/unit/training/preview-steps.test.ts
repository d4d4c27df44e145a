/** Which step a job makes, and which steps it goes by: after deletes, of its own model alone. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readCheckpoint } from '../../../src/control/training/checkpoint-files.ts';
import { FakeEngine } from './fake-engine.ts';
import { createModel, finished, group, startPlane, type Plane } from './plane.ts';

const JOBS = '/v1/preview/training-jobs';

let plane: Plane;
beforeAll(async () => {
  plane = await startPlane();
}, 120_000);
afterAll(() => plane?.end());

const rl = (modelId: string, experimental_config: object = {}) => ({
  model_id: modelId,
  trajectory_groups: [group([1, 0, 0.5])],
  experimental_config,
});

const deleteSteps = (modelId: string, ...steps: number[]) =>
  plane.json(`/v1/preview/models/${modelId}/checkpoints`, {
    method: 'DELETE',
    body: JSON.stringify({ steps }),
    headers: { 'content-type': 'application/json' },
  });

const train = async (modelId: string, config: object = {}) =>
  finished(plane, String((await plane.ok(JOBS, rl(modelId, config)))['id']));

/** That the optimizer of a checkpoint has taken. */
async function optimizerSteps(modelId: string, step: number): Promise<number> {
  const row = await plane.database.db
    .selectFrom('checkpoints')
    .select('blob_key')
    .where('model_id', '=', modelId)
    .where('step', '=', step)
    .executeTakeFirstOrThrow();
  const { optimizer } = await readCheckpoint(join(plane.dataDir, 'blobs', row.blob_key), 'rl');
  return optimizer?.steps ?? 0;
}

test('jobs of a model go in order, and steps only grow', async () => {
  const { id: modelId, run_id: run } = await createModel(plane, 'series');
  const ids: string[] = [];
  for (let i = 0; i < 4; i++) ids.push(String((await plane.ok(JOBS, rl(modelId)))['id']));
  const steps = [];
  for (const id of ids) steps.push((await finished(plane, id)).at(-1)?.data['step']);
  expect(steps).toEqual([1, 2, 3, 4]);
  await deleteSteps(modelId, 4);
  const { id } = await plane.ok(JOBS, rl(modelId));
  expect((await finished(plane, String(id))).at(-1)?.data['step']).toBe(5);
  // It went on from step 3, with the optimizer as it was then.
  expect(await optimizerSteps(modelId, 5)).toBe(4 * (await optimizerSteps(modelId, 1)));
  // Its numbers are told of the step that it made, not of the one that is gone.
  const metrics = { 'train/loss': expect.any(Number) as number };
  const page = await plane.json(`/v1/preview/models/${modelId}/checkpoints?limit=1&order=desc`);
  expect(page).toMatchObject({ data: [{ step: 5, metrics }] });
  const rows = (await plane.json(`/v1/preview/runs/${run}/history`))['data'] as { step: number }[];
  expect(rows.map(({ step }) => step)).toEqual([1, 2, 3, 4, 5]);
});

test('no number is given again when all steps are deleted; the next one begins where step 0 did', async () => {
  const { id: modelId } = await createModel(plane, 'emptied');
  const next = async () => {
    const events = await train(modelId);
    return { step: events.at(-1)?.data['step'], loss: events[1]?.data['loss'] };
  };
  const first = await next();
  expect(first.step).toBe(1);
  expect((await next()).step).toBe(2);
  expect(await deleteSteps(modelId, 0, 1, 2)).toMatchObject({ deleted_count: 3 });
  expect(await next()).toEqual({ ...first, step: 3 });
  const page = await plane.json(`/v1/preview/models/${modelId}/checkpoints`);
  expect(page).toMatchObject({ data: [{ step: 3 }] });
});

test('a delete with more than steps is refused, and deletes nothing', async () => {
  const { id: modelId } = await createModel(plane, 'kept');
  const response = await plane.call(`/v1/preview/models/${modelId}/checkpoints`, {
    method: 'DELETE',
    body: JSON.stringify({ steps: [0], keep: [0] }),
    headers: { 'content-type': 'application/json' },
  });
  expect([response.status, await response.json()]).toMatchObject([422, { detail: [{ loc: ['body', 'keep'] }] }]);
  expect(await deleteSteps(modelId, 0)).toMatchObject({ deleted_count: 1 });
});

test('step 0 is the reference of a KL penalty, whether it is kept or not', async () => {
  const { id: modelId } = await createModel(plane, 'referring');
  await deleteSteps(modelId, 0);
  const events = await train(modelId, { kl_penalty_coef: 0.1, kl_penalty_reference_step: 0 });
  expect(events.at(-1)?.type).toBe('training_ended');
  expect(events[1]?.data).toHaveProperty('kl_policy_ref');
});

/** A body of a new model that has the steps 0, 2 and 3. */
async function gapped(name: string, config: object): Promise<object> {
  const { id } = await createModel(plane, name);
  for (let i = 0; i < 3; i++) await train(id);
  await deleteSteps(id, 1);
  return rl(id, { kl_penalty_coef: 0.1, ...config });
}

test.each([
  ['kl_penalty_step_lag', 2],
  ['kl_penalty_reference_step', 1],
])('%s that leads to a deleted step is refused by name', async (field, value) => {
  const response = await plane.post(JOBS, await gapped(`gap-${field}`, { [field]: value }));
  expect(response.status).toBe(422);
  const loc = ['body', 'experimental_config', field];
  expect(await response.json()).toMatchObject({ detail: [{ loc, msg: 'The model has no checkpoint at step 1.' }] });
});

test.each([0, 1, 3, 100])('kl_penalty_step_lag %i leads to a step that is there', async (lag) => {
  const body = await gapped(`lag-${lag}`, { kl_penalty_step_lag: lag });
  const events = await finished(plane, String((await plane.ok(JOBS, body))['id']));
  expect(events.at(-1)).toMatchObject({ type: 'training_ended', data: { step: 4 } });
});

/** Nothing of the engine's goes on until the function that is returned is called. */
function holdEngine(): () => void {
  let release: () => void = () => undefined;
  plane.engine_.beforeCall = () => new Promise<void>((resolve) => (release = resolve));
  return () => {
    plane.engine_.beforeCall = () => undefined;
    release();
  };
}

test.each([
  ['kl_penalty_reference_step', 3],
  // Two before the step that the job in front makes.
  ['kl_penalty_step_lag', 2],
])('%s of an accepted job may be deleted before its turn', async (field, value) => {
  const body = await gapped(`kept-${field}`, { [field]: value });
  const { model_id: modelId } = body as { model_id: string };
  const { references } = plane.engine_;
  await train(modelId, { kl_penalty_coef: 0.1, kl_penalty_reference_step: 3 });
  const wanted = references.at(-1);
  const release = holdEngine();
  await plane.ok(JOBS, rl(modelId));
  const { id } = await plane.ok(JOBS, body);
  expect(await deleteSteps(modelId, 0, 2, 3, 4)).toMatchObject({ deleted_count: 4 });
  const before = references.length;
  release();
  expect((await finished(plane, String(id))).at(-1)).toMatchObject({ type: 'training_ended', data: { step: 6 } });
  expect(references.slice(before)).toEqual([wanted]);
});

test('a lag behind jobs that have not ended is theirs to decide; a repeated request is answered whatever is deleted', async () => {
  const body = await gapped('lag-queued', { kl_penalty_step_lag: 2 });
  const { model_id: modelId } = body as { model_id: string };
  const release = holdEngine();
  const before = await plane.ok(JOBS, rl(modelId));
  const { id } = (await (await plane.post(JOBS, body, { 'idempotency-key': 'lagging' })).json()) as { id: string };
  release();
  expect((await finished(plane, String(before['id']))).at(-1)?.type).toBe('training_ended');
  expect((await finished(plane, id)).at(-1)).toMatchObject({ type: 'training_ended', data: { step: 5 } });
  await deleteSteps(modelId, 3);
  const again = await plane.post(JOBS, body, { 'idempotency-key': 'lagging' });
  expect([again.status, await again.json()]).toEqual([200, { id }]);
});

test('a reader of pages may delete what it has read', async () => {
  const { id: modelId } = await createModel(plane, 'pruned');
  const { id: other } = await createModel(plane, 'untouched');
  for (let i = 0; i < 4; i++) await train(modelId);
  const path = `/v1/preview/models/${modelId}/checkpoints`;
  for (const order of ['asc', 'desc']) {
    const seen: number[] = [];
    let after = '';
    for (;;) {
      const page = await plane.json(`${path}?limit=1&order=${order}&after=${after}`);
      const [item] = page['data'] as { id: string; step: number }[];
      if (!item) break;
      seen.push(item.step);
      // The newest stays for the way back.
      if (item.step < 4) expect(await deleteSteps(modelId, item.step)).toMatchObject({ deleted_count: 1 });
      after = item.id;
    }
    expect(seen).toEqual(order === 'asc' ? [0, 1, 2, 3, 4] : [4]);
    // Whose checkpoint it was is not forgotten.
    expect((await plane.call(`/v1/preview/models/${other}/checkpoints?after=${after}`)).status).toBe(422);
  }
});

test('a job whose step is deleted before it has told of it ends with that step, and makes no other', async () => {
  const dataDir = mkdtempSync(join(tmpdir(), 'tandem-deleted-step-'));
  const start = (paused: boolean, engine: FakeEngine) => startPlane({ dataDir, paused, engine });
  // The step is listed, and the engine does not take it before the server stops.
  const slow = new FakeEngine();
  slow.loadAdapter = () => new Promise<void>(() => undefined);
  let other = await start(false, slow);
  try {
    const { id: modelId } = await createModel(other, 'told-late');
    const job = `/v1/preview/training-jobs/${String((await other.ok(JOBS, rl(modelId)))['id'])}`;
    const steps = `/v1/preview/models/${modelId}/checkpoints`;
    const listed = async () => ((await other.json(steps))['data'] as { step: number }[]).map(({ step }) => step);
    await expect.poll(listed).toEqual([0, 1]);
    await other.end();

    const engine = new FakeEngine();
    other = await start(true, engine);
    const headers = { 'content-type': 'application/json' };
    await other.json(steps, { method: 'DELETE', body: '{"steps":[1]}', headers });
    await other.side.start();
    await expect.poll(async () => (await other.json(job))['status']).toBe('succeeded');
    const events = (await other.json(`${job}/events`))['data'] as { type: string; data: object }[];
    expect(events.at(-1)).toMatchObject({ type: 'training_ended', data: { step: 1 } });
    expect([await listed(), engine.calls, engine.loaded]).toEqual([[0], 0, []]);
  } finally {
    await other.end();
    rmSync(dataDir, { recursive: true, force: true });
  }
});
