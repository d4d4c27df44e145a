/**
 * A process that works on a data directory until it is killed: creates models, logs, queues, cancels and deletes, at random, and trains
 * meanwhile. It says on standard output what it tries and what was acknowledged, one JSON array per line.
 * `child.mjs plain|native work DIR SEED PENDING FAVOUR` | `child.mjs plain|native settle DIR` (until no job is open)
 */
import { writeSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pino } from 'pino';
import { OPTIONS } from '../../../dist/cli/options.js';
import { setUpTraining } from '../../../dist/cli/training-setup.js';
import { FolderBlobStore } from '../../../dist/control/store/blob-store.js';
import { Database } from '../../../dist/control/store/database.js';
import { seededRandom } from '../../../dist/control/training/random.js';
import { bodyOf } from './bodies.mjs';
import { openEngine } from './engine.mjs';

const ENTITY = 'default';
const MAX_OPEN = 6;
const [kind, mode, dataDir, seed = '0', pendingJson = '[]', favour = ''] = process.argv.slice(2);
const say = (...words) => writeSync(1, `${JSON.stringify(words)}\n`);

const settings = {
  ...Object.fromEntries(Object.entries(OPTIONS).map(([key, option]) => [key, option.default()])),
  dataDir,
};
const { engine, chat, spec, pid, close } = await openEngine(kind, mode === 'settle' ? 0 : 1);
if (pid !== null) say('engine', String(pid));
const database = await Database.open(dataDir);
const side = await setUpTraining({
  // Kills are no crashes of the job's own: they must not end it here. A job lets those of other models go first whenever it may.
  settings: { ...settings, maxTrainingAttempts: 100_000, trainingTurnSeconds: 1e-6 },
  database,
  blobs: new FolderBlobStore(join(dataDir, 'blobs')),
  model: { spec, vocabSize: spec.vocabSize, directory: 'base', digest: 'base', servingObstacle: () => null },
  names: ['base'],
  engine,
  chat,
  samples: () => null,
  log: pino({ level: 'silent' }),
});
const { models, jobs, logs } = side.services;
await side.start();
say('ready');

async function* stream(text) {
  yield Buffer.from(text);
}

const actions = {
  async model(name) {
    const request = { project: 'p', name, baseModel: 'base', entity: null, returnExisting: true };
    return (await models.create(ENTITY, request)).id;
  },
  job: (modelId, key) => jobs.createRl(ENTITY, stream(JSON.stringify(bodyOf(modelId, key))), key),
  async log(modelId, key) {
    const { trajectory_groups } = bodyOf(modelId, key);
    return (await logs.log(modelId, ENTITY, stream(JSON.stringify({ split: key, trajectory_groups })))).id;
  },
  async cancel(jobId) {
    return (await jobs.cancel(jobId, ENTITY)).job.state;
  },
  deleteCheckpoint: (modelId, step) => models.deleteCheckpoints(modelId, ENTITY, [step]),
  checkpoints: async (modelId) => {
    const { rows } = await models.checkpoints(modelId, ENTITY, { after: null, limit: 1, order: 'desc' });
    return rows;
  },
  deleteModel: (modelId) => models.delete(modelId, ENTITY),
};

async function act(name, ...args) {
  say('try', name, ...args);
  try {
    const result = await actions[name](...args);
    say('ack', name, ...args, result);
    return result;
  } catch (error) {
    // A model that a round before has deleted.
    if (error.code !== 'not_found' && error.code !== 'queue_full') throw error;
    say('refused', name, ...args);
    return null;
  }
}

async function openJobs() {
  const counts = await side.services.jobCounts();
  return (counts.get('queued') ?? 0) + (counts.get('running') ?? 0);
}

/** What to draw for an action. */
const LEADS_TO = { job: 0, log: 0.5, deleteCheckpoint: 0.75, deleteModel: 0.86 };

async function work() {
  const random = seededRandom(`kill ${seed}`);
  const pick = (list) => list[Math.floor(random() * list.length)];
  for (const [name, ...args] of JSON.parse(pendingJson)) await act(name, ...args);
  const ids = [];
  for (let i = 0; ; i++) {
    if (ids.length < 2 || random() < 0.05) ids.push(await act('model', `m${Math.floor(random() * 6)}`));
    const model = pick(ids.filter((id) => id !== null));
    const key = `${seed}-${i}`;
    const dice = favour === '' || random() < 0.7 ? random() : LEADS_TO[favour];
    if (dice < 0.45 && (await openJobs()) < MAX_OPEN) {
      const job = await act('job', model, key);
      if (job !== null && random() < 0.1) await act('cancel', job);
    } else if (dice < 0.7) await act('log', model, key);
    else if (dice < 0.85) {
      // Never the newest: with it would go what the next job begins with.
      const newest = (await actions.checkpoints(model).catch(() => []))[0]?.step ?? 0;
      if (newest > 0) await act('deleteCheckpoint', model, Math.floor(random() * newest));
    } else if (dice < 0.88) await act('deleteModel', model);
    await sleep(random() * 4);
  }
}

async function settle() {
  while ((await openJobs()) > 0) await sleep(10);
  await side.stop();
  await database.close();
  await close();
}

await (mode === 'settle' ? settle() : work());
