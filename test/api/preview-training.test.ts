/** Jobs of the real trainer through HTTP: sample, train, sample the new step; kills of the engine and of the server in between. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { json } from './preview.ts';
import { ApiServer, waitFor } from './server.ts';
import { createModel, ended, events, expectWhole, job, JOBS, sample } from './training-jobs.ts';

const TIMEOUT_MS = 180_000;

let dataDir: string;
let servers: ApiServer[];
beforeEach(() => {
  dataDir = mkdtempSync(join(tmpdir(), 'tandem-train-'));
  servers = [];
});
afterEach(async () => {
  for (const server of servers) await server.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

async function start(env: Record<string, string> = {}): Promise<ApiServer> {
  const server = await ApiServer.start({ dataDir, env });
  servers.push(server);
  return server;
}

test(
  'a job trains, its step serves, the step before goes on serving',
  async () => {
    const server = await start();
    const { id } = await createModel(server);
    const before = await sample(server, 'default/p/agent:step0', 7);
    const all = await ended(server, await job(server, id));
    expectWhole(all);
    // Sampled from the very weights that the first step saw.
    expect(all[1]?.data['probs_corr']).toBeGreaterThan(0.999);
    const page = await json(server, `/v1/preview/models/${id}/checkpoints?order=desc`);
    expect(page['data']).toMatchObject([{ step: 1 }, { step: 0 }]);
    expect(await sample(server, 'default/p/agent:step0', 7)).toEqual(before);
    const after = await sample(server, 'default/p/agent:step1', 7);
    expect(await sample(server, 'default/p/agent', 7)).toEqual(after);
    expect(after.logprobs.content[0]?.logprob).not.toBe(before.logprobs.content[0]?.logprob);
    const metrics = await (await server.call('/metrics')).text();
    expect(metrics).toMatch(/^tandem_training_jobs\{state="succeeded"\} 1$/m);
  },
  TIMEOUT_MS,
);

test(
  'rows are packed for the memory that training has: up to the last byte, and no further',
  async () => {
    const server = await start({ TANDEM_TRAINING_MEMORY: '4M' });
    const { id } = await createModel(server);
    const reply = (g: number, i: number) => {
      const ids = [100 + i, ...Array.from({ length: 1 + ((g * 5 + i) % 20) }, (_, k) => 200 + k), 4089];
      const content = ids.map((token) => ({ token: `token_id:${token}`, logprob: -1.5 }));
      const choice = { finish_reason: 'stop', index: 0, message: { role: 'assistant', content: 'x' } };
      return { ...choice, prompt_token_ids: [5, 6, 7, 300 + g], token_ids: ids, logprobs: { content } };
    };
    const trajectory_groups = Array.from({ length: 40 }, (_, g) => ({
      trajectories: [0, 1, 2].map((i) => ({ messages_and_choices: [reply(g, i)], reward: i })),
    }));
    const body = { model_id: id, trajectory_groups };
    const { id: jobId } = (await (await server.post(JOBS, body)).json()) as { id: string };
    const all = await ended(server, jobId);
    expectWhole(all);
    // Each is several sequences.
    const tokens = all.filter(({ type }) => type === 'gradient_step').map(({ data }) => data['num_tokens'] ?? 0);
    expect(Math.max(...tokens)).toBeGreaterThan(50);
  },
  TIMEOUT_MS,
);

test.each([
  [
    'TANDEM_TRAINING_MEMORY',
    '1M',
    /a packed row of \d+ tokens needs \d+ MiB, and training may take 1 MiB\. Shorter trajectories/,
  ],
  [
    'TANDEM_MAX_TRAINING_ROW_TOKENS',
    '9',
    /a packed row of \d+ tokens is longer than the 9 of --max-training-row-tokens\. Shorter trajectories/,
  ],
])(
  'rows that training has no memory for fail the job, which says so; the server goes on: %s',
  async (variable, value, message) => {
    const server = await start({ [variable]: value });
    const { id } = await createModel(server);
    const all = await ended(server, await job(server, id));
    expect(all.map(({ type }) => type)).toEqual(['training_started', 'training_failed']);
    expect(String(all[1]?.data['error_message'])).toMatch(message);
    expect((await json(server, `/v1/preview/models/${id}/checkpoints`))['data']).toMatchObject([{ step: 0 }]);
    expect((await sample(server, 'default/p/agent', 1)).token_ids.length).toBeGreaterThan(0);
  },
  TIMEOUT_MS,
);

test(
  'kill -9 of the engine, then of the server, while a job trains: it ends once, without a gap',
  async () => {
    let server = await start();
    const { id } = await createModel(server);
    const jobId = await job(server, id);
    await waitFor(async () => (await events(server, jobId)).length >= 2, 60_000);
    process.kill(server.enginePid(), 'SIGKILL');
    const seen = await events(server, jobId);
    server.child.kill('SIGKILL');
    await server.exited;
    server = await start();
    const all = await ended(server, jobId);
    expect(all.slice(0, seen.length)).toEqual(seen);
    expectWhole(all);
    expect(await json(server, `/v1/preview/models/${id}/checkpoints?order=desc&limit=1`)).toMatchObject({
      data: [{ step: 1 }],
    });
    expect((await sample(server, 'default/p/agent:step1', 1)).token_ids.length).toBeGreaterThan(0);
  },
  TIMEOUT_MS,
);

test(
  'SIGTERM rests the job; the next start ends it',
  async () => {
    let server = await start();
    const { id } = await createModel(server);
    const jobId = await job(server, id);
    await waitFor(async () => (await events(server, jobId)).length >= 1, 60_000);
    server.child.kill('SIGTERM');
    expect(await server.exited).toBe(0);
    server = await start();
    expectWhole(await ended(server, jobId));
  },
  TIMEOUT_MS,
);
