/**
 * `kill -9` over accept, log, step, snapshot, optimizer write, checkpoint, event and delete: first once at each of these very instants (the
 * process kills itself there, see fixtures/faults.mjs), then at random ones too. Afterwards every acknowledged job has ended once, events
 * have no gap and no double, what was deleted is gone, sums are those of the rows, and the weights are those of an unbroken run. With a
 * trainer of plain arithmetic, which gives many kills in little time, and with the real engine, whose process is killed as well.
 * TANDEM_KILL_ROUNDS sets the number of kills; each instant comes first.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Database } from '../../src/control/store/database.ts';
import { FolderBlobStore } from '../../src/control/store/blob-store.ts';
import { ModelRepository } from '../../src/control/store/model-repository.ts';
import { seededRandom } from '../../src/control/training/random.ts';
import { storedBytes } from '../unit/store/row-bytes.ts';

const ROUNDS = Number(process.env['TANDEM_KILL_ROUNDS'] ?? 26);
const NATIVE_ROUNDS = Math.max(3, Math.floor(ROUNDS / 10));
const SEED = process.env['TANDEM_KILL_SEED'] ?? '1';
const fileOf = (name: string) => fileURLToPath(new URL(name, import.meta.url));
const CHILD = fileOf('training-kill/child.mjs');
const UNBROKEN = fileOf('training-kill/unbroken.mjs');
const FAULTS = fileOf('../fixtures/faults.mjs');
const ROUND_TIMEOUT_MS = 600_000;

/** Where the process kills itself, and the action that leads there most often. */
const INSTANTS: { name: string; do: string; on: string; fail: string; favour: string }[] = [
  { name: 'accept: the input is in place', do: 'rename', on: '/inputs/', fail: 'kill-after', favour: 'job' },
  { name: 'accept: half of the input', do: 'write', on: 'content.jsonl.gz$', fail: 'kill-half', favour: 'job' },
  { name: 'accept: the row, not committed', do: 'sql', on: '^insert into "jobs"', fail: 'kill-after', favour: 'job' },
  { name: 'log: the row', do: 'sql', on: '^insert into "trajectory_logs"', fail: 'kill-after', favour: 'log' },
  { name: 'log: the blob', do: 'rename', on: '/trajectories/', fail: 'kill-after', favour: 'log' },
  { name: 'start', do: 'sql', on: '^update "jobs" set "state"', fail: 'kill-after', favour: 'job' },
  { name: 'step', do: 'point', on: '^optimize$', fail: 'kill', favour: 'job' },
  { name: 'snapshot: half of it', do: 'write', on: '/snapshot$', fail: 'kill-half', favour: 'job' },
  { name: 'snapshot: in place', do: 'rename', on: '/snapshots/', fail: 'kill-after', favour: 'job' },
  { name: 'snapshot: its row', do: 'sql', on: '^update "jobs" set "snapshot_key"', fail: 'kill-after', favour: 'job' },
  { name: 'snapshot: the old one', do: 'remove', on: '/snapshots/', fail: 'kill', favour: 'job' },
  { name: 'optimizer write', do: 'write', on: '/optimizer.safetensors$', fail: 'kill-half', favour: 'job' },
  { name: 'adapter write', do: 'write', on: '/adapter_model.safetensors$', fail: 'kill-half', favour: 'job' },
  { name: 'checkpoint: before the rename', do: 'rename', on: '/adapters/', fail: 'kill', favour: 'job' },
  { name: 'checkpoint: after the rename', do: 'rename', on: '/adapters/', fail: 'kill-after', favour: 'job' },
  { name: 'checkpoint: its row', do: 'sql', on: '^insert into "checkpoints"', fail: 'kill-after', favour: 'job' },
  { name: 'event: before', do: 'sql', on: '^insert into "job_events"', fail: 'kill', favour: 'job' },
  {
    name: 'event: written, not committed',
    do: 'sql',
    on: '^insert into "job_events"',
    fail: 'kill-after',
    favour: 'job',
  },
  { name: 'commit: before', do: 'sql', on: '^commit$', fail: 'kill', favour: 'job' },
  { name: 'commit: after', do: 'sql', on: '^commit$', fail: 'kill-after', favour: 'job' },
  { name: 'run: its row', do: 'sql', on: '^insert into "run_history"', fail: 'kill-after', favour: 'job' },
  {
    name: 'delete: checkpoint',
    do: 'sql',
    on: '^delete from "checkpoints"',
    fail: 'kill-after',
    favour: 'deleteCheckpoint',
  },
  { name: 'delete: model', do: 'sql', on: '^delete from "models"', fail: 'kill-after', favour: 'deleteModel' },
  { name: 'delete: blobs', do: 'remove', on: '/trajectories/', fail: 'kill', favour: 'deleteModel' },
];

type Line = [kind: 'ready' | 'engine' | 'try' | 'ack' | 'refused', name: string, ...args: unknown[]];
type Instant = (typeof INSTANTS)[number];

let dataDir: string;
let rules: string;
let engine: 'plain' | 'native';
/** Everything that the children said, in order. */
let lines: Line[];

function begin(kind: typeof engine): void {
  dataDir = mkdtempSync(join(tmpdir(), 'tandem-kill-'));
  rules = join(dataDir, 'faults.json');
  engine = kind;
  lines = [];
}

/** When a child is killed from outside: so long after it has said so many lines; its engine process so long before. */
interface Kill {
  lines: number;
  afterMs: number;
  engineFirst: boolean;
}

/** At an instant of its own, from outside, or not at all: then it runs to its end. */
type End = { instant: Instant } | { kill: Kill } | null;

function killLater(child: ChildProcess, { afterMs, engineFirst }: Kill, out: string): void {
  const pid = Number(/^\["engine","(\d+)"/m.exec(out)?.[1] ?? 0);
  if (engineFirst && pid > 0) {
    try {
      process.kill(pid, 'SIGKILL');
    } catch {
      // It has just ended.
    }
  }
  setTimeout(() => child.kill('SIGKILL'), afterMs);
}

async function child(args: string[], end: End): Promise<void> {
  writeFileSync(rules, JSON.stringify(end && 'instant' in end ? [end.instant] : []));
  const process_ = spawn(process.execPath, ['--import', FAULTS, CHILD, engine, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, TANDEM_TEST_FAULTS: rules },
  });
  let out = '';
  let errors = '';
  let killed = false;
  process_.stdout.on('data', (chunk) => {
    out += String(chunk);
    if (killed || end === null || 'instant' in end || out.split('\n').length <= end.kill.lines) return;
    killed = true;
    killLater(process_, end.kill, out);
  });
  process_.stderr.on('data', (chunk) => (errors += String(chunk)));
  const guard = setTimeout(() => process_.kill('SIGABRT'), ROUND_TIMEOUT_MS);
  const [code, signal] = await new Promise<[number | null, string | null]>((resolve) =>
    process_.once('close', (...ended) => resolve(ended)),
  );
  clearTimeout(guard);
  const asMeant = end === null ? code === 0 : signal === 'SIGKILL';
  const which = end && 'instant' in end ? end.instant.name : 'random';
  if (!asMeant) throw new Error(`${which}: ${code} ${signal}: ${errors}\n${out.slice(-2000)}`);
  // The last line may be cut by the kill.
  for (const line of out.split('\n').slice(0, -1)) lines.push(JSON.parse(line) as Line);
}

const said = (kind: string, name: string) =>
  lines.filter((line) => line[0] === kind && line[1] === name).map((line) => line.slice(2));

/** Job requests that were sent and not answered: their senders try again with the same key. */
function unanswered(): unknown[] {
  const key = (args: unknown[]) => JSON.stringify(args.slice(0, 2));
  const answered = new Set([...said('ack', 'job'), ...said('refused', 'job')].map(key));
  return said('try', 'job')
    .filter((args) => !answered.has(key(args)))
    .map((args) => ['job', ...args]);
}

interface JobFacts {
  id: string;
  model_id: string;
  state: string;
  input_key: string | null;
  snapshot_key: string | null;
}

/** Every instant once, then random ones and instants in turn. */
function endOf(round: number, instants: Instant[], random: () => number): End {
  const index = round < instants.length ? round : round % 2 === 0 ? Math.floor(random() * instants.length) : -1;
  const instant = instants[index];
  if (instant)
    return { instant: { ...instant, at: round < instants.length ? 1 : 1 + Math.floor(random() * 3) } as Instant };
  // Also before the first line: while the jobs of the round before are taken up.
  const kill = { lines: Math.floor(random() * 30), afterMs: Math.floor(random() * 60) };
  return { kill: { ...kill, engineFirst: engine === 'native' && random() < 0.5 } };
}

async function killRounds(rounds: number, instants: Instant[]): Promise<void> {
  const random = seededRandom(`kills ${engine} ${SEED}`);
  for (let round = 0; round < rounds; round++) {
    const end = endOf(round, instants, random);
    const favour = end && 'instant' in end ? end.instant.favour : '';
    await child(['work', dataDir, `${SEED}.${round}`, JSON.stringify(unanswered()), favour], end);
  }
  await child(['settle', dataDir], null);
  const database = await Database.open(dataDir);
  try {
    await checkJobs(database);
    await checkCheckpoints(database);
    await checkLogs(database);
    await checkBlobs(database);
    await checkSums(database);
    await checkWeights(database);
  } finally {
    await database.close();
  }
}

describe.each([
  ['a trainer of plain arithmetic', 'plain' as const, ROUNDS, INSTANTS],
  // Kills inside of the server's own writes are the same there; these are at random.
  ['the real engine', 'native' as const, NATIVE_ROUNDS, []],
])('%s', (_, kind, rounds, instants) => {
  beforeAll(() => begin(kind));
  afterAll(() => rmSync(dataDir, { recursive: true, force: true }));
  test(`${rounds} kills`, () => killRounds(rounds, instants), (rounds + 2) * ROUND_TIMEOUT_MS);
});

/** Models whose deletion was tried may or may not be there; the others must be. */
function maybeDeleted(): Set<unknown> {
  return new Set(said('try', 'deleteModel').map(([id]) => id));
}

async function checkJobs({ db }: Database): Promise<void> {
  const jobs: JobFacts[] = await db.selectFrom('jobs').selectAll().orderBy('sequence').execute();
  const byId = new Map(jobs.map((job) => [job.id, job]));
  const deleted = maybeDeleted();
  const acknowledged = said('ack', 'job');
  expect(acknowledged.length).toBeGreaterThan(0);
  for (const [modelId, key, id] of acknowledged) {
    if (!deleted.has(modelId)) expect(byId.get(String(id)), `job ${String(id)} of ${String(key)}`).toBeDefined();
  }
  // One job per key, however often it was sent.
  const ids = acknowledged.map(([modelId, key, id]) => `${String(modelId)} ${String(key)} ${String(id)}`);
  expect(new Set(ids).size).toBe(
    new Set(acknowledged.map(([modelId, key]) => `${String(modelId)} ${String(key)}`)).size,
  );
  for (const job of jobs) {
    expect(['succeeded', 'failed', 'cancelled']).toContain(job.state);
    expect([job.input_key, job.snapshot_key]).toEqual([null, null]);
    await checkEvents(job, await db.selectFrom('job_events').selectAll().where('job_id', '=', job.id).execute());
  }
  const cancelled = new Set(said('try', 'cancel').map(([id]) => id));
  expect(jobs.filter((job) => job.state !== 'succeeded' && !cancelled.has(job.id))).toEqual([]);
  for (const [id, state] of said('ack', 'cancel'))
    if (byId.has(String(id))) expect(byId.get(String(id))?.state).toBe(state);
}

async function checkEvents(job: JobFacts, rows: { sequence: number; id: string; type: string; data: string }[]) {
  const events = rows.sort((a, b) => a.sequence - b.sequence);
  expect(events.map(({ sequence }) => sequence)).toEqual(events.map((_, index) => index));
  expect(new Set(events.map(({ id }) => id)).size).toBe(events.length);
  const types = events.map(({ type }) => type);
  const ends = types.filter((type) => type === 'training_ended' || type === 'training_failed');
  expect(ends).toEqual([job.state === 'succeeded' ? 'training_ended' : 'training_failed']);
  expect(types.at(-1)).toBe(ends[0]);
  const data = events.map((event) => JSON.parse(event.data) as Record<string, number>);
  const steps = data.filter((_, at) => types[at] === 'gradient_step').map((step) => step['gradient_step']);
  expect(steps).toEqual(steps.map((_, index) => index + 1));
  if (job.state !== 'succeeded') return;
  expect(types[0]).toBe('training_started');
  expect(steps).toHaveLength(data[0]?.['num_sequences'] ?? -1);
}

async function checkCheckpoints({ db }: Database): Promise<void> {
  const models = await db.selectFrom('models').selectAll().execute();
  const rows = await db.selectFrom('checkpoints').selectAll().execute();
  const there = new Set(rows.map((row) => `${row.model_id} ${row.step}`));
  for (const [modelId, step] of said('ack', 'deleteCheckpoint'))
    expect(there.has(`${String(modelId)} ${String(step)}`)).toBe(false);
  const gone = new Set(said('ack', 'deleteModel').map(([id]) => id));
  expect(models.filter((model) => gone.has(model.id))).toEqual([]);
  const attempted = new Set(
    said('try', 'deleteCheckpoint').map(([modelId, step]) => `${String(modelId)} ${String(step)}`),
  );
  for (const model of models) {
    const made = await db
      .selectFrom('jobs')
      .select(({ fn }) => fn.countAll<number>().as('count'))
      .where('model_id', '=', model.id)
      .where('state', '=', 'succeeded')
      .executeTakeFirstOrThrow();
    // One step per job that succeeded, none given twice, none lost but by a delete.
    expect(model.next_step).toBe(made.count + 1);
    for (let step = 0; step < model.next_step; step++) {
      const key = `${model.id} ${step}`;
      if (!attempted.has(key)) expect(there.has(key), key).toBe(true);
    }
  }
}

async function checkLogs({ db }: Database): Promise<void> {
  const there = new Set((await db.selectFrom('trajectory_logs').select('id').execute()).map(({ id }) => id));
  const deleted = maybeDeleted();
  for (const [modelId, , id] of said('ack', 'log')) {
    if (!deleted.has(modelId)) expect(there.has(String(id)), `log ${String(id)}`).toBe(true);
  }
}

/** Every row's files are there, and after a sweep nothing else. */
async function checkBlobs({ db }: Database): Promise<void> {
  const blobs = new FolderBlobStore(join(dataDir, 'blobs'));
  const referenced = await new ModelRepository(db).referencedBlobs();
  for (const key of referenced) {
    expect(existsSync(blobs.path(key)), key).toBe(true);
    expect(readdirSync(blobs.path(key)).length).toBeGreaterThan(0);
  }
  await blobs.sweep(referenced);
  for (const key of referenced) expect(existsSync(blobs.path(key)), key).toBe(true);
}

async function checkSums({ db }: Database): Promise<void> {
  const sums = await db.selectFrom('entity_storage').selectAll().execute();
  expect(new Map(sums.map(({ entity, bytes }) => [entity, bytes]))).toEqual(await storedBytes(db));
}

/** The same jobs one after the other, without a store and without a kill. */
async function checkWeights({ db }: Database): Promise<void> {
  const known = await db.selectFrom('idempotency_keys').selectAll().execute();
  const keys = new Map(known.map((row) => [row.result_id, row.key]));
  const jobs = await db.selectFrom('jobs').selectAll().where('state', '=', 'succeeded').orderBy('sequence').execute();
  const last = new Map<string, { index: number; step: number }>();
  const list = jobs.map((job, index) => {
    const before = last.get(job.model_id);
    const step = before?.step ?? 0;
    last.set(job.model_id, { index, step: step + 1 });
    return { id: job.id, modelId: job.model_id, key: keys.get(job.id), start: before?.index ?? null, step };
  });
  const digests = JSON.parse(await pipe(UNBROKEN, [engine], JSON.stringify(list))) as string[];
  const checkpoints = await db.selectFrom('checkpoints').selectAll().where('job_id', 'is not', null).execute();
  expect(checkpoints.length).toBeGreaterThan(0);
  for (const checkpoint of checkpoints) {
    const at = list.findIndex(({ id }) => id === checkpoint.job_id);
    expect(list[at]?.step, checkpoint.id).toBe(checkpoint.step - 1);
    expect(checkpoint.version, `step ${checkpoint.step} of ${checkpoint.model_id}`).toBe(digests[at]);
  }
}

async function pipe(script: string, args: string[], input: string): Promise<string> {
  const process_ = spawn(process.execPath, [script, ...args], { stdio: ['pipe', 'pipe', 'inherit'] });
  let out = '';
  process_.stdout.on('data', (chunk) => (out += String(chunk)));
  process_.stdin.end(input);
  const code = await new Promise((resolve) => process_.once('close', resolve));
  if (code !== 0) throw new Error(`${script} ended with ${String(code)}.`);
  return out;
}
