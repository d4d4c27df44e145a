/** Two entities on one server: what one computes, remembers or logs is nothing to the other, and a flood of one does not hold up the other. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createEntityKey } from './preview.ts';
import { ApiServer, waitFor } from './server.ts';

const CHAT = '/v1/chat/completions';

let dataDir: string;
let keys: Record<'ours' | 'theirs', string>;
let server: ApiServer;
beforeAll(async () => {
  dataDir = mkdtempSync(join(tmpdir(), 'tandem-tenancy-'));
  keys = { ours: await createEntityKey(dataDir, 'ours'), theirs: await createEntityKey(dataDir, 'theirs') };
  server = await ApiServer.start({ dataDir, flags: ['--max-num-seqs', '2', '--log-level', 'debug'] });
});
afterAll(async () => {
  await server?.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

interface Answer {
  id: string;
  usage: { prompt_tokens: number; prompt_tokens_details?: { cached_tokens: number } | null };
}

async function ask(who: keyof typeof keys, more: object = {}): Promise<Answer> {
  const headers = { authorization: `Bearer ${keys[who]}` };
  // Longer than a few pages.
  const messages = [{ role: 'user', content: 'Is the sky blue, green or red today? '.repeat(8) }];
  const response = await server.post(CHAT, { messages, max_completion_tokens: 2, ...more }, { headers });
  if (response.status !== 200) throw new Error(await response.text());
  return (await response.json()) as Answer;
}

const cached = ({ usage }: Answer) => usage.prompt_tokens_details?.cached_tokens ?? 0;

test("a prompt that another entity has sent is cold; so is one's own under another salt or another adapter", async () => {
  expect(cached(await ask('ours'))).toBe(0);
  expect(cached(await ask('ours'))).toBeGreaterThan(0);
  expect(cached(await ask('theirs'))).toBe(0);
  expect(cached(await ask('theirs'))).toBeGreaterThan(0);
  for (const salt of ['a', 'x'.repeat(1000)]) {
    expect(cached(await ask('ours', { cache_salt: salt }))).toBe(0);
    expect(cached(await ask('theirs', { cache_salt: salt }))).toBe(0);
    expect(cached(await ask('ours', { cache_salt: salt }))).toBeGreaterThan(0);
  }
  const list = (await (await server.call('/v1/models')).json()) as { data: { id: string }[] };
  const model = { project: 'p', name: 'agent', base_model: list.data[0]?.id };
  const headers = { authorization: `Bearer ${keys.ours}` };
  expect((await server.post('/v1/preview/models', model, { headers })).status).toBe(200);
  expect(cached(await ask('ours', { model: 'ours/p/agent' }))).toBe(0);
  expect(cached(await ask('ours', { model: 'ours/p/agent' }))).toBeGreaterThan(0);
});

test('the same request_id of two entities names two completions', async () => {
  const [ours, theirs] = await Promise.all([
    ask('ours', { request_id: 'mine' }),
    ask('theirs', { request_id: 'mine' }),
  ]);
  expect([ours.id, theirs.id].every((id) => id.includes('mine'))).toBe(true);
  const list = (await (await server.call('/v1/models')).json()) as { data: { id: string }[] };
  const model = { project: 'p', name: 'agent', base_model: list.data[0]?.id, return_existing: true };
  const id: Record<string, string> = {};
  for (const who of ['ours', 'theirs'] as const) {
    const headers = { authorization: `Bearer ${keys[who]}` };
    id[who] = ((await (await server.post('/v1/preview/models', model, { headers })).json()) as { id: string }).id;
  }
  const sampled = await ask('ours', { model: 'ours/p/agent', request_id: 'secret' });
  const job = (model_id: string) => ({
    model_id,
    trajectory_groups: [
      {
        trajectories: [
          {
            messages_and_choices: [
              { finish_reason: 'stop', index: 0, message: { role: 'assistant', content: '' }, request_id: sampled.id },
            ],
            reward: 1,
          },
        ],
      },
    ],
  });
  for (const [who, status] of [
    ['theirs', 422],
    ['ours', 200],
  ] as const) {
    const headers = { authorization: `Bearer ${keys[who]}` };
    expect((await server.post('/v1/preview/training-jobs', job(id[who] ?? ''), { headers })).status, who).toBe(status);
  }
});

test('an interactive request does not wait for the flood of another entity', async () => {
  const ended: string[] = [];
  const flood = Array.from({ length: 100 }, async (_, index) => {
    await ask('theirs', { max_completion_tokens: 40, ignore_eos: true, seed: index, temperature: 1 });
    ended.push('theirs');
  });
  await Promise.all(flood.slice(0, 2));
  await ask('ours', { max_completion_tokens: 40, ignore_eos: true });
  ended.push('ours');
  await Promise.all(flood);
  // Two run at once and the next free place is ours: by count of requests, not by time.
  expect(ended.indexOf('ours')).toBeLessThan(60);
});

test('nor is it refused where the other entity has filled the queue', async () => {
  const abort = new AbortController();
  const headers = { authorization: `Bearer ${keys.theirs}` };
  const body = { messages: [{ role: 'user', content: 'x' }], temperature: 1, max_tokens: 900, ignore_eos: true };
  const send = (n: number, signal: AbortSignal) => server.post(CHAT, { ...body, n }, { headers, signal });
  // Two run, 1,024 may wait.
  const flood = Array.from({ length: 8 }, () => send(125, abort.signal).catch(() => null));
  await waitFor(async () => (await server.load()).waiting > 960, 60_000);
  expect((await send(100, AbortSignal.timeout(60_000))).status).toBe(429);
  expect((await ask('ours', { n: 100, temperature: 1 })).usage.prompt_tokens).toBeGreaterThan(0);
  abort.abort();
  await Promise.all(flood);
});

test('nor does its prompt wait for all of the other entity to be rendered', async () => {
  const tokenize = async (who: keyof typeof keys, prompt: string) => {
    const headers = { authorization: `Bearer ${keys[who]}` };
    const response = await server.post('/tokenize', { prompt }, { headers });
    expect(response.status).toBe(200);
    await response.arrayBuffer();
    ended.push(who);
  };
  const ended: string[] = [];
  const flood = Array.from({ length: 60 }, () => tokenize('theirs', 'so many different words '.repeat(2_500)));
  await Promise.all(flood.slice(0, 2));
  await tokenize('ours', 'hello');
  await Promise.all(flood);
  // One thread renders, and the next turn but one is ours.
  expect(ended.indexOf('ours')).toBeLessThan(30);
});

test('no key is in the log, the metrics or an error', async () => {
  const bad = await server.call('/v1/models', { headers: { authorization: `Bearer ${keys.ours}x` } });
  const texts = [await bad.text(), await (await server.call('/metrics')).text(), server.log];
  expect(bad.status).toBe(401);
  for (const key of Object.values(keys)) for (const text of texts) expect(text).not.toContain(key);
});
