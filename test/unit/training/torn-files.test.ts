/**
 * What a disk may leave of the newest snapshot or checkpoint although it was told to sync: cut at any byte, zeros, nothing. A damaged
 * snapshot costs the work since the job began, never its result; a damaged checkpoint is told, and others serve on.
 */
import {
  cpSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { pino } from 'pino';
import { FolderBlobStore } from '../../../src/control/store/blob-store.ts';
import { JobRepository } from '../../../src/control/store/job-repository.ts';
import { readAdapterFiles } from '../../../src/control/models/adapter-files.ts';
import { holdsVersion } from '../../../src/control/models/adapter-version.ts';
import { OPTIMIZER_FILE, readCheckpoint } from '../../../src/control/training/checkpoint-files.ts';
import { StoredSnapshots } from '../../../src/control/training/jobs/stored-ports.ts';
import { readTensors } from '../../../src/control/training/tensor-file.ts';
import { allEvents, createModel, finished, group, startPlane, type Plane } from './plane.ts';
import { FAKE_SPEC } from './fake-engine.ts';

const JOBS = '/v1/preview/training-jobs';
const SFT = '/v1/preview/sft-training-jobs';
const ARTIFACTS = '/v1/preview/artifacts';
const EVERY_BYTE_MS = 120_000;

let dataDir: string;
let planes: Plane[];
beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), 'tandem-torn-'));
  planes = [];
});
afterEach(async () => {
  for (const plane of planes) await plane.end().catch(() => undefined);
  rmSync(dataDir, { recursive: true, force: true });
});

async function start(folder: string, paused: boolean): Promise<Plane> {
  const plane = await startPlane({ dataDir: folder, paused });
  planes.push(plane);
  return plane;
}

const rl = (modelId: string) => ({
  model_id: modelId,
  trajectory_groups: Array.from({ length: 6 }, (_, i) => group([i + 1, 0, 0.5])),
  experimental_config: { packed_sequence_length: 32, logprob_calculation_chunk_size: 32, learning_rate: 0.01 },
});

/** A data directory whose server stopped in the middle of a job, after `calls` calls of its trainer. */
async function interrupted(calls: number): Promise<{ modelId: string; job: string; snapshot: string }> {
  const plane = await start(dataDir, true);
  const { id: modelId } = await createModel(plane, 'agent');
  const job = String((await plane.ok(JOBS, rl(modelId)))['id']);
  const reached = new Promise<void>((resolve) => {
    plane.engine_.beforeCall = (call) => {
      if (call === calls) resolve();
    };
  });
  await plane.side.start();
  await reached;
  await plane.side.stop();
  const key = (await new JobRepository(plane.database.db).find(job))?.snapshotKey ?? '';
  await plane.end();
  return { modelId, job, snapshot: join(dataDir, 'blobs', key, 'snapshot') };
}

/** Sizes from `longest` down to 0: every one near both ends, every 13th between. No `expect` for each: it would cost more than the reading. */
function* cuts(longest: number): Generator<number> {
  for (let size = longest; size >= 0; size -= size > 600 && size < longest - 200 ? 13 : 1) yield size;
}

function isRead(path: string): Promise<boolean> {
  return readTensors(path).then(
    () => true,
    () => false,
  );
}

/** The version of the step that the job makes. */
async function settle(folder: string, modelId: string, job: string): Promise<string> {
  const plane = await start(folder, false);
  const events = await finished(plane, job);
  const steps = Number(events[0]?.data['num_sequences']);
  expect(events.map(({ type }) => type)).toEqual([
    'training_started',
    ...Array.from({ length: steps }, () => 'gradient_step'),
    'training_ended',
  ]);
  expect(await allEvents(plane, job)).toEqual(events);
  const made = await plane.database.db
    .selectFrom('checkpoints')
    .select('version')
    .where('model_id', '=', modelId)
    .where('step', '=', 1)
    .executeTakeFirstOrThrow();
  await plane.end();
  return made.version;
}

test('a damaged snapshot: the job begins again and ends with the same weights', async () => {
  const { modelId, job, snapshot } = await interrupted(12);
  const inCopy = (name: string) => snapshot.replace(dataDir, join(dataDir, '..', name));
  const bytes = readFileSync(snapshot);
  const damages: [string, (file: string) => void][] = [
    ['whole', () => undefined],
    ['empty', (file) => truncateSync(file, 0)],
    ['half', (file) => truncateSync(file, Math.floor(bytes.length / 2))],
    ['one byte short', (file) => truncateSync(file, bytes.length - 1)],
    ['zeros', (file) => writeFileSync(file, Buffer.alloc(bytes.length))],
    [
      'a flipped bit',
      (file) =>
        writeFileSync(
          file,
          bytes.map((byte, at) => (at === bytes.length - 3 ? byte ^ 1 : byte)),
        ),
    ],
    ['gone', (file) => rmSync(file)],
  ];
  const versions: string[] = [];
  for (const [index, [, damage]] of damages.entries()) {
    const name = `${dataDir.split('/').at(-1) ?? ''}-${index}`;
    const copy = join(dataDir, '..', name);
    cpSync(dataDir, copy, { recursive: true });
    try {
      damage(inCopy(name));
      versions.push(await settle(copy, modelId, job));
    } finally {
      rmSync(copy, { recursive: true, force: true });
    }
  }
  expect(versions).toEqual(damages.map(() => versions[0]));
}, 180_000);

test(
  'a snapshot that is cut at any byte is no snapshot',
  async () => {
    const { job, snapshot } = await interrupted(12);
    const plane = await start(dataDir, true);
    const blobs = new FolderBlobStore(join(dataDir, 'blobs'));
    const stored = new StoredSnapshots(new JobRepository(plane.database.db), blobs, pino({ level: 'silent' }));
    const whole = readFileSync(snapshot);
    expect(await stored.load(job)).toEqual(await readTensors(snapshot));
    const taken: number[] = [];
    for (const size of cuts(whole.length - 1)) {
      truncateSync(snapshot, size);
      // By its digest; and what reads it does not take it either.
      const checked = size % 16 === 0 || size > whole.length - 64;
      if ((checked && (await stored.load(job)) !== null) || (await isRead(snapshot))) taken.push(size);
    }
    expect(taken).toEqual([]);
  },
  EVERY_BYTE_MS,
);

function flip(path: string): void {
  const bytes = readFileSync(path);
  writeFileSync(
    path,
    bytes.map((byte, at) => (at === bytes.length - 3 ? byte ^ 1 : byte)),
  );
}

/** A plane whose model has step 1: its row and its folder. */
async function trained(): Promise<{ plane: Plane; modelId: string; version: string; folder: string }> {
  const plane = await start(dataDir, false);
  const { id: modelId } = await createModel(plane, 'agent');
  await finished(plane, String((await plane.ok(JOBS, rl(modelId)))['id']));
  const made = await plane.database.db
    .selectFrom('checkpoints')
    .select(['blob_key', 'version'])
    .where('step', '=', 1)
    .executeTakeFirstOrThrow();
  return { plane, modelId, version: made.version, folder: join(dataDir, 'blobs', made.blob_key) };
}

const failure = (message: string) => ({ type: 'training_failed', data: { error_message: message } });

test('a checkpoint of which a bit is another serves nobody and is not trained on', async () => {
  const { plane, modelId, folder, version: made } = await trained();
  const version = `${made}.of-this-step`;
  expect(await holdsVersion(folder, version)).toBe(true);
  flip(join(folder, 'adapter_model.safetensors'));
  expect(await holdsVersion(folder, version)).toBe(false);
  const events = await finished(plane, String((await plane.ok(JOBS, rl(modelId)))['id']));
  expect(events.at(-1)).toMatchObject(
    failure(
      'The files of step 1 are damaged (adapter_config.json or adapter_model.safetensors): ' +
        'delete this step to go on from the one before.',
    ),
  );
});

test.each<[string, (path: string) => void]>([
  ['of which a bit is another', flip],
  ['that is gone', rmSync],
])('an optimizer %s is not trained on', async (_, damage) => {
  const { plane, modelId, folder, version } = await trained();
  damage(join(folder, OPTIMIZER_FILE));
  expect(await holdsVersion(folder, version)).toBe(true);
  const events = await finished(plane, String((await plane.ok(JOBS, rl(modelId)))['id']));
  expect(events.at(-1)).toMatchObject(
    failure('The files of step 1 are damaged (optimizer.safetensors): delete this step to go on from the one before.'),
  );
  // Before versions told of optimizers nobody could tell.
  await plane.end();
  const old = await start(dataDir, true);
  await old.database.db
    .updateTable('checkpoints')
    .set({ version: version.split('.')[0] ?? '' })
    .where('step', '=', 1)
    .execute();
  await old.end();
  const later = await start(dataDir, false);
  const going = await finished(later, String((await later.ok(JOBS, rl(modelId)))['id']));
  expect(going.at(-1)?.type).toBe('training_ended');
});

const row = (text: string): string =>
  JSON.stringify({
    messages: [
      { role: 'user', content: 'Who are you?' },
      { role: 'assistant', content: text },
    ],
  });

/** An artifact with one row of training data: where to ask for it, its URL, and its file. */
async function uploaded(plane: Plane): Promise<{ path: string; url: string; file: string }> {
  const { id } = await plane.ok(ARTIFACTS, { project: 'p', name: 'data' });
  const path = `${ARTIFACTS}/${String(id)}/files/train.jsonl`;
  await plane.call(path, { method: 'PUT', headers: plane.as('default'), body: row('Polly') });
  const { url } = await plane.ok(`${ARTIFACTS}/${String(id)}/commit`, {});
  const [key = ''] = readdirSync(join(dataDir, 'blobs', 'uploads'));
  return { path, url: String(url), file: join(dataDir, 'blobs', 'uploads', key, 'content') };
}

test('an artifact that the disk has lost or changed is neither handed out nor trained on', async () => {
  const plane = await start(dataDir, true);
  const { id: model_id } = await createModel(plane, 'agent');
  const { path, url, file } = await uploaded(plane);
  const ask = () => [plane.call(path), plane.post(SFT, { model_id, training_data_url: url })];
  for (const [told, damage] of [
    // Still a row, which could be trained on.
    ['damaged', () => writeFileSync(file, row('Molly'))],
    ['missing', () => rmSync(file)],
  ] as const) {
    damage();
    for (const response of await Promise.all(ask()))
      expect([response.status, await response.text()]).toEqual([500, expect.stringContaining(`The file is ${told}`)]);
  }
  expect(readdirSync(join(dataDir, 'blobs', 'inputs'))).toEqual([]);
});

test.each<[string, (path: string) => void]>([
  ['that are gone', rmSync],
  ['that are cut', (path) => truncateSync(path, readFileSync(path).length - 1)],
  ['of which a bit is another', flip],
])('data of a job %s fail it, and say so', async (_, damage) => {
  const plane = await start(dataDir, true);
  const { id: model_id } = await createModel(plane, 'agent');
  const sft = { model_id, training_data_url: (await uploaded(plane)).url };
  const jobs = [await plane.ok(JOBS, rl(model_id)), await plane.ok(SFT, sft)];
  for (const { id } of jobs) {
    const key = (await new JobRepository(plane.database.db).find(String(id)))?.inputKey ?? '';
    damage(join(dataDir, 'blobs', key, 'content.jsonl.gz'));
  }
  await plane.side.start();
  for (const { id } of jobs) {
    expect((await finished(plane, String(id))).at(-1)).toMatchObject(
      failure("The job's data are damaged in the server's storage: send them again, as a new job."),
    );
  }
});

test('a step that a waiting job compares with: damaged meanwhile, it fails the job', async () => {
  const { plane, modelId, folder } = await trained();
  await plane.end();
  const paused = await start(dataDir, true);
  const field = 'kl_penalty_reference_step';
  const job = { ...rl(modelId), experimental_config: { kl_penalty_coef: 0.1, [field]: 1 } };
  const [first, second] = [await paused.ok(JOBS, job), await paused.ok(JOBS, job)].map(({ id }) => String(id));
  const { inputKey } = (await new JobRepository(paused.database.db).find(second ?? '')) ?? {};
  const headers = { 'content-type': 'application/json' };
  await paused.json(`/v1/preview/models/${modelId}/checkpoints`, { method: 'DELETE', body: '{"steps":[1]}', headers });
  await paused.end();
  flip(join(folder, 'adapter_model.safetensors'));
  // As it was kept before its digest was.
  const input = join(dataDir, 'blobs', String(inputKey));
  const [kept = ''] = readdirSync(input).filter((name) => name.startsWith('step-1-'));
  renameSync(join(input, kept), join(input, 'step-1'));
  const going = await start(dataDir, false);
  expect((await finished(going, first ?? '')).at(-1)).toMatchObject(
    failure(
      'The files of step 1 are damaged (adapter_config.json or adapter_model.safetensors): ' +
        `experimental_config.${field} needs another one.`,
    ),
  );
  expect((await finished(going, second ?? '')).at(-1)?.type).toBe('training_ended');
});

test('a step whose files are damaged before it serves fails its job at once', async () => {
  const plane = await start(dataDir, false);
  const { id: modelId } = await createModel(plane, 'agent');
  let loads = 0;
  plane.engine_.loadAdapter = ({ directory }) => {
    if (loads++ === 0) flip(join(directory, 'adapter_model.safetensors'));
    return Promise.reject(new Error('Its files have changed since it was named.'));
  };
  const job = String((await plane.ok(JOBS, rl(modelId)))['id']);
  expect((await finished(plane, job)).at(-1)).toMatchObject(
    failure(
      'The files of step 1 are damaged (adapter_config.json or adapter_model.safetensors): delete this step and train it again.',
    ),
  );
  expect(loads).toBe(1);
});

test('a step that is deleted while it waits to serve is none whose files are damaged: its job ends', async () => {
  const plane = await start(dataDir, false);
  const { id: modelId } = await createModel(plane, 'agent');
  const headers = { 'content-type': 'application/json' };
  plane.engine_.loadAdapter = async ({ directory }) => {
    await plane.json(`/v1/preview/models/${modelId}/checkpoints`, { method: 'DELETE', body: '{"steps":[1]}', headers });
    // The engine takes so long that they have gone.
    rmSync(directory, { recursive: true });
    throw new Error('The file adapter_config.json is missing.');
  };
  const job = String((await plane.ok(JOBS, rl(modelId)))['id']);
  expect((await finished(plane, job)).at(-1)).toMatchObject({ type: 'training_ended', data: { step: 1 } });
});

test(
  'a checkpoint that is cut at any byte neither serves nor trains',
  async () => {
    const plane = await start(dataDir, false);
    const { id: modelId } = await createModel(plane, 'agent');
    await finished(plane, String((await plane.ok(JOBS, rl(modelId)))['id']));
    const { blob_key: key } = await plane.database.db
      .selectFrom('checkpoints')
      .select('blob_key')
      .where('step', '=', 1)
      .executeTakeFirstOrThrow();
    const folder = join(dataDir, 'blobs', key);
    const limits = { spec: FAKE_SPEC, maxRank: 128 };
    await readAdapterFiles(folder, limits);
    for (const [file, read] of [
      ['adapter_model.safetensors', () => readAdapterFiles(folder, limits)],
      ['adapter_config.json', () => readAdapterFiles(folder, limits)],
      [OPTIMIZER_FILE, () => readCheckpoint(folder, 'rl')],
    ] as const) {
      const path = join(folder, file);
      const whole = readFileSync(path);
      // A configuration ends with a line feed that nobody needs.
      const taken: number[] = [];
      for (const size of cuts(whole.length - 2)) {
        truncateSync(path, size);
        const refused = await read().then(
          () => false,
          () => true,
        );
        if (!refused) taken.push(size);
      }
      expect(taken, file).toEqual([]);
      const events = await finished(plane, String((await plane.ok(JOBS, rl(modelId)))['id']));
      expect(events.at(-1)).toMatchObject({
        type: 'training_failed',
        data: { error_message: expect.stringContaining('The files of step 1 are damaged') as string },
      });
      writeFileSync(path, whole);
    }
    // Step 0 is whole.
    const headers = { 'content-type': 'application/json' };
    await plane.json(`/v1/preview/models/${modelId}/checkpoints`, { method: 'DELETE', body: '{"steps":[1]}', headers });
    const events = await finished(plane, String((await plane.ok(JOBS, rl(modelId)))['id']));
    expect(events.at(-1)?.type).toBe('training_ended');
  },
  EVERY_BYTE_MS,
);
