/** Who trains next, and for how long. */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { JobRepository } from '../../../src/control/store/job-repository.ts';
import { SqliteError } from '../../../src/control/store/sqlite-client.ts';
import type { RunJob } from '../../../src/control/training/jobs/job-loop.ts';
import { loopOf, rl } from './job-loops.ts';
import { BASE, createModel, finished, startPlane, type Plane } from './plane.ts';

const JOBS = '/v1/preview/training-jobs';

let dataDir: string;
let planes: Plane[];
beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), 'tandem-loop-'));
  planes = [];
});
afterEach(async () => {
  for (const plane of planes) await plane.end().catch(() => undefined);
  rmSync(dataDir, { recursive: true, force: true });
});

async function start(options: Parameters<typeof startPlane>[0] = {}): Promise<Plane> {
  const plane = await startPlane({ dataDir, ...options });
  planes.push(plane);
  return plane;
}

test('a turn is over behind its time while a job of another model waits; jobs take turns until they end', async () => {
  const plane = await start({ paused: true });
  const [long, short] = [await createModel(plane, 'long'), await createModel(plane, 'short')];
  const ids = [];
  for (const { id } of [long, long, short]) ids.push(String((await plane.ok(JOBS, rl(id)))['id']));
  const [first = '', second = '', other = ''] = ids;
  const runs: [string, boolean[]][] = [];
  const left = new Map([
    [first, 3],
    [second, 1],
    [other, 2],
  ]);
  const run: RunJob = async ({ id }, _signal, turnIsOver) => {
    const asked = [await turnIsOver()];
    await sleep(5);
    asked.push(await turnIsOver());
    runs.push([id, asked]);
    const more = (left.get(id) ?? 0) - 1;
    left.set(id, more);
    if (more > 0 && asked[1] === true) return 'yielded';
    await loop.end(id, 'fail', 'played');
    return 'failed';
  };
  const { loop, repository } = loopOf(plane, run, undefined, 2);
  await loop.start();
  await expect.poll(async () => (await repository.find(second))?.state).toBe('failed');
  await loop.stop();
  expect(runs).toEqual([
    [first, [false, true]],
    [other, [false, true]],
    [first, [false, true]],
    [other, [false, true]],
    // The one of its own model waits for it.
    [first, [false, false]],
    [second, [false, false]],
  ]);
  // None of the starts counted: each had got on.
  expect((await repository.find(first))?.attempts).toBe(1);
});

test('a job that let others go first has its turn, however many of these come one after another', async () => {
  const plane = await start({ paused: true });
  const [long, left, right] = [
    await createModel(plane, 'l'),
    await createModel(plane, 'a'),
    await createModel(plane, 'b'),
  ];
  const accept = async (id: string) => String((await plane.ok(JOBS, rl(id)))['id']);
  const job = await accept(long.id);
  await accept(left.id);
  const runs: string[] = [];
  const run: RunJob = async ({ id, modelId }, _signal, turnIsOver) => {
    runs.push(modelId);
    await turnIsOver();
    await sleep(5);
    if (id === job && runs.length < 4) return (await turnIsOver()) ? 'yielded' : 'ended';
    // The next one waits before this one has ended.
    if (id !== job && runs.length < 8) await accept(modelId === left.id ? right.id : left.id);
    await loop.end(id, 'fail', 'played');
    return 'failed';
  };
  const { loop, repository } = loopOf(plane, run, undefined, 2);
  await loop.start();
  await expect.poll(async () => (await repository.find(job))?.state).toBe('failed');
  await loop.stop();
  expect(runs.slice(0, 5)).toEqual([long.id, left.id, long.id, right.id, long.id]);
});

test.each([0, 2])('a job goes on where turns have no end (%i) or nobody can say who waits', async (turnMs) => {
  const plane = await start({ paused: true });
  const [mine, other] = [await createModel(plane, 'mine'), await createModel(plane, 'other')];
  const ids = [];
  for (const { id } of [mine, other]) ids.push(String((await plane.ok(JOBS, rl(id)))['id']));
  const [id = ''] = ids;
  const log = pino({ level: 'silent' });
  const told = vi.spyOn(log, 'error');
  let asked: boolean | null = null;
  const run: RunJob = async (_job, signal, turnIsOver) => {
    await turnIsOver();
    await sleep(5);
    asked ??= await turnIsOver();
    if (!signal.aborted) await once(signal, 'abort');
    return 'stopped';
  };
  const { loop, repository } = loopOf(plane, run, log, turnMs);
  vi.spyOn(repository, 'newestOther').mockRejectedValue(new SqliteError('disk I/O error', 'SQLITE_IOERR'));
  await loop.start();
  await expect.poll(() => asked).toBe(false);
  expect(told).toHaveBeenCalledTimes(turnMs === 0 ? 0 : 1);
  expect((await repository.find(id))?.state).toBe('running');
  await loop.stop();
});

test('a short job of another model ends before a long one that began earlier, whose events are those of one run', async () => {
  const plane = await start({ paused: true, settings: { trainingTurnSeconds: 0.001 } });
  const [long, short] = [await createModel(plane, 'long'), await createModel(plane, 'short')];
  const job = String((await plane.ok(JOBS, rl(long.id, 8)))['id']);
  const quick = String((await plane.ok(JOBS, rl(short.id)))['id']);
  let first = '';
  await plane.side.start();
  const ends = [job, quick].map((id) => finished(plane, id).then((events) => ((first ||= id), events)));
  const [events = []] = await Promise.all(ends);
  expect(first).toBe(quick);
  const steps = Number(events[0]?.data['num_sequences']);
  expect(steps).toBeGreaterThan(3);
  expect(events.map(({ type, data }) => data['gradient_step'] ?? type)).toEqual([
    'training_started',
    ...Array.from({ length: steps }, (_, i) => i + 1),
    'training_ended',
  ]);
  expect(await plane.json(`${JOBS}/${job}`)).toMatchObject({ status: 'succeeded' });
});

test('entities have their turns: a long queue of one lets the others through', async () => {
  const plane = await start({ paused: true });
  const ids: string[] = [];
  for (const [entity, jobs] of [
    ['default', 4],
    ['rivals', 2],
  ] as const) {
    const model = await plane.post(
      '/v1/preview/models',
      { project: 'p', name: 'm', base_model: BASE },
      plane.as(entity),
    );
    const { id } = (await model.json()) as { id: string };
    for (let i = 0; i < jobs; i++) {
      const response = await plane.post(JOBS, rl(id, 1), plane.as(entity));
      ids.push(((await response.json()) as { id: string }).id);
    }
  }
  await plane.side.start();
  await finished(plane, ids[3] ?? '');
  const repository = new JobRepository(plane.database.db);
  const jobs = await Promise.all(ids.map((id) => repository.find(id)));
  const order = jobs.map((job, i) => ({ i, at: job?.startedAt ?? '' })).sort((a, b) => a.at.localeCompare(b.at));
  expect(order.map(({ i }) => i)).toEqual([0, 4, 1, 5, 2, 3]);
});
