/**
 * The real server on a disk that is full, fails or cannot be written, and under a clock that jumps back (fixtures/faults.mjs stands in
 * between): a clear answer, nothing half kept, and all is well once the disk is.
 */
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { json } from './preview.ts';
import { ApiServer, waitFor } from './server.ts';

const FAULTS = fileURLToPath(new URL('../fixtures/faults.mjs', import.meta.url));
const MODELS = '/v1/preview/models';
const JOBS = '/v1/preview/training-jobs';
const TIMEOUT_MS = 180_000;

interface Rule {
  do: 'write' | 'sync' | 'rename' | 'remove' | 'sql';
  on: string;
  at?: number;
  fail: string;
}

let dataDir: string;
let server: ApiServer;
let models = 0;
/** One server for all disks: rules come and go while it runs. */
beforeAll(async () => {
  dataDir = mkdtempSync(join(tmpdir(), 'tandem-faults-'));
  await start();
});
afterEach(() => fail());
afterAll(async () => {
  await server?.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

const rulesFile = () => join(dataDir, 'rules.json');

/** From now on, in every thread of the server. */
function fail(...rules: Rule[]): void {
  writeFileSync(rulesFile(), JSON.stringify(rules));
}

async function start(env: Record<string, string> = {}): Promise<void> {
  fail();
  server = await ApiServer.start({
    dataDir,
    env: {
      NODE_OPTIONS: `--import ${FAULTS}`,
      TANDEM_TEST_FAULTS: rulesFile(),
      TANDEM_MAX_TRAINING_ATTEMPTS: '2',
      ...env,
    },
  });
}

async function createModel(name: string): Promise<Response> {
  const list = (await (await server.call('/v1/models')).json()) as { data: { id: string }[] };
  const base_model = list.data[0]?.id ?? '';
  return server.post(MODELS, { entity: null, project: 'p', name, base_model, return_existing: true });
}

async function modelId(name: string): Promise<string> {
  return ((await (await createModel(name)).json()) as { id: string }).id;
}

/** Two rewards, so that there is something to train on; `rows` steps. */
function rl(model_id: string, rows = 1) {
  const trajectory = (ids: number[], reward: number) => ({
    messages_and_choices: [
      {
        finish_reason: 'stop',
        index: 0,
        message: { role: 'assistant', content: 'x' },
        prompt_token_ids: [5, 6, 7],
        token_ids: ids,
        logprobs: { content: ids.map((id) => ({ token: `token_id:${id}`, logprob: -1.5 })) },
      },
    ],
    reward,
  });
  const group = (g: number) => ({ trajectories: [trajectory([100 + g, 4089], 1), trajectory([200 + g, 4089], 0)] });
  const experimental_config = { packed_sequence_length: 16, logprob_calculation_chunk_size: 16 };
  return { model_id, trajectory_groups: Array.from({ length: rows }, (_, g) => group(g)), experimental_config };
}

interface Event {
  type: string;
  data: Record<string, unknown>;
}

async function ended(job: string): Promise<Event[]> {
  let events: Event[] = [];
  await waitFor(
    async () => {
      events = (await json(server, `${JOBS}/${job}/events?limit=100`))['data'] as Event[];
      return ['training_ended', 'training_failed'].includes(events.at(-1)?.type ?? '');
    },
    120_000,
    () => JSON.stringify(events),
  );
  return events;
}

async function accepted(model: string, rows = 1): Promise<string> {
  const response = await server.post(JOBS, rl(model, rows));
  if (response.status !== 200) throw new Error(await response.text());
  return ((await response.json()) as { id: string }).id;
}

async function interrupted(job: string): Promise<void> {
  const said = (line: string) => line.includes(job) && line.includes('training job was interrupted');
  await waitFor(
    () => server.log.split('\n').some(said),
    60_000,
    () => server.log,
  );
}

const drafts = () => readdirSync(join(dataDir, 'blobs', 'drafts'));
const blobs = (area: string) => readdirSync(join(dataDir, 'blobs', area));

/** Everything that stores something, with what must not be left behind where it fails. */
async function requests(model: string, artifact: string, another: string): Promise<Response[]> {
  const log = { split: 'val', trajectory_groups: rl(model).trajectory_groups };
  return [
    await createModel(another),
    await server.post(`${MODELS}/${model}/log`, log),
    await server.post(JOBS, rl(model)),
    await server.call(`/v1/preview/artifacts/${artifact}/files/train.jsonl`, { method: 'PUT', body: '{}' }),
  ];
}

async function openArtifact(): Promise<string> {
  const response = await server.post('/v1/preview/artifacts', { project: 'p', name: 'data' });
  return ((await response.json()) as { id: string }).id;
}

test.each<[string, Rule, number]>([
  ['a full disk, at the first byte', { do: 'write', on: '/blobs/', fail: 'ENOSPC' }, 507],
  ['a full disk, at a rename', { do: 'rename', on: '/blobs/', fail: 'ENOSPC' }, 507],
  ['a quota of the file system', { do: 'sync', on: '/blobs/', fail: 'EDQUOT' }, 507],
  ['a database that is full', { do: 'sql', on: '^insert into', fail: 'SQLITE_FULL' }, 507],
  ['a disk that fails to sync', { do: 'sync', on: '/blobs/', fail: 'EIO' }, 500],
  ['a disk that cannot be written', { do: 'write', on: '/blobs/', fail: 'EROFS' }, 500],
  ['a database that cannot be written', { do: 'sql', on: '^insert into', fail: 'SQLITE_IOERR' }, 500],
])(
  '%s: told, nothing kept, and well again',
  async (_, rule, status) => {
    const model = await modelId(`agent-${models++}`);
    const artifact = await openArtifact();
    const kept = () => ['adapters', 'inputs', 'trajectories', 'uploads'].map(blobs);
    const before = kept();
    const another = `another-${models++}`;
    fail(rule);
    for (const response of await requests(model, artifact, another)) {
      const text = await response.text();
      expect([response.status, text], response.url).toEqual([status, expect.not.stringContaining(dataDir)]);
      expect(JSON.parse(text)).toMatchObject({ error: { code: status } });
      expect(text).not.toMatch(/ENOSPC|EIO|EROFS|SQLITE|injected/);
    }
    fail();
    expect(drafts()).toEqual([]);
    expect(kept()).toEqual(before);
    expect((await json(server, `${MODELS}/${model}/log`))['data']).toEqual([]);
    for (const response of await requests(model, artifact, another)) expect(response.status, response.url).toBe(200);
    expect(((await ended(await accepted(model))).at(-1) as Event).type).toBe('training_ended');
  },
  TIMEOUT_MS,
);

test.each<[string, Rule, string]>([
  ['a snapshot', { do: 'write', on: '/snapshot$', at: 2, fail: 'ENOSPC' }, "The server's disk is full."],
  ['a checkpoint', { do: 'sync', on: '/adapter_model', fail: 'EDQUOT' }, "The server's disk is full."],
  [
    "a snapshot's row",
    { do: 'sql', on: '^update "jobs" set "snapshot', fail: 'SQLITE_FULL' },
    "The server's disk is full.",
  ],
  [
    "a checkpoint's row",
    { do: 'sql', on: '^insert into "checkpoints"', fail: 'SQLITE_FULL' },
    "The server's disk is full.",
  ],
  ['a checkpoint', { do: 'sync', on: '/adapter_model', fail: 'EIO' }, 'The server could not read or write its files.'],
])(
  'a job that again and again cannot write %s fails with one event; the step stays, and the next job goes on',
  async (_, rule, message) => {
    const model = await modelId(`agent-${models++}`);
    fail(rule);
    const events = await ended(await accepted(model, 3));
    expect(events.at(-1)).toMatchObject({
      type: 'training_failed',
      data: { error_message: expect.stringContaining(message) as string },
    });
    fail();
    expect(drafts()).toEqual([]);
    const steps = async () => ((await json(server, `${MODELS}/${model}/checkpoints`))['data'] as object[]).length;
    expect(await steps()).toBe(1);
    expect((await ended(await accepted(model, 3))).at(-1)).toMatchObject({ type: 'training_ended', data: { step: 1 } });
    expect(await steps()).toBe(2);
  },
  TIMEOUT_MS,
);

test.each<[string, Rule]>([
  ['a snapshot', { do: 'write', on: '/snapshot$', at: 2, fail: 'ENOSPC' }],
  ['the optimizer', { do: 'write', on: '/optimizer', fail: 'EIO' }],
])(
  'a job that cannot write %s for a moment goes on',
  async (_, rule) => {
    const model = await modelId(`agent-${models++}`);
    fail(rule);
    const job = await accepted(model, 3);
    await interrupted(job);
    fail();
    const types = (await ended(job)).map(({ type }) => type);
    expect(types.join()).toMatch(/^training_started(,gradient_step)+,training_ended$/);
    expect(drafts()).toEqual([]);
  },
  TIMEOUT_MS,
);

test(
  'while the last event cannot be written the job is not over; it ends once, when it can be',
  async () => {
    const model = await modelId(`agent-${models++}`);
    fail({ do: 'sql', on: '^insert into "job_events"', at: 3, fail: 'SQLITE_FULL' });
    const job = await accepted(model, 1);
    await interrupted(job);
    const events = (await json(server, `${JOBS}/${job}/events`))['data'] as Event[];
    expect(events.map(({ type }) => type)).toEqual(['training_started', 'gradient_step']);
    fail();
    expect((await ended(job)).map(({ type }) => type)).toEqual(['training_started', 'gradient_step', 'training_ended']);
  },
  TIMEOUT_MS,
);

test(
  'a database that fails while a job comes to rest: the job goes on when it is well',
  async () => {
    const model = await modelId(`agent-${models++}`);
    // Neither an event nor the job's state can be written, from the first step on.
    fail(
      { do: 'sql', on: '^insert into "job_events"', at: 2, fail: 'SQLITE_IOERR' },
      { do: 'sql', on: '^update "jobs" set "state"', at: 2, fail: 'SQLITE_IOERR' },
    );
    const job = await accepted(model, 2);
    await waitFor(
      () => server.log.includes('could not be queued again'),
      60_000,
      () => server.log,
    );
    fail();
    const events = (await ended(job)).map(({ type }) => type);
    expect([events[0], events.at(-1)]).toEqual(['training_started', 'training_ended']);
    expect(new Set(events.slice(1, -1))).toEqual(new Set(['gradient_step']));
  },
  TIMEOUT_MS,
);

test(
  'a clock that jumps back a day changes no order and loses nothing',
  async () => {
    await server.stop();
    await start({ TANDEM_TEST_CLOCK_BACK_MS: '86400000' });
    const model = await modelId('late');
    const jobs = [];
    for (let i = 0; i < 3; i++) jobs.push(await accepted(model));
    for (const [index, job] of jobs.entries()) {
      const events = await ended(job);
      expect(events.map(({ type }) => type)).toEqual(['training_started', 'gradient_step', 'training_ended']);
      expect(events.at(-1)?.data['step']).toBe(index + 1);
    }
    const page = await json(server, `${MODELS}/${model}/checkpoints?order=desc`);
    expect((page['data'] as { step: number }[]).map(({ step }) => step)).toEqual([3, 2, 1, 0]);
    const body = { model: 'default/p/late', messages: [{ role: 'user', content: 'yes?' }], max_completion_tokens: 2 };
    expect((await server.post('/v1/chat/completions', body)).status).toBe(200);
    server.child.kill('SIGKILL');
    await server.exited;
    await start();
    expect(await json(server, `${MODELS}/${model}/checkpoints?order=desc&limit=1`)).toMatchObject({
      data: [{ step: 3 }],
    });
  },
  TIMEOUT_MS,
);
