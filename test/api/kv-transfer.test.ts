/** Disaggregated serving between two server processes: prefill on one, decode on the other. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ApiServer } from './server.ts';

const MAIN = fileURLToPath(new URL('../../dist/cli/main.js', import.meta.url));
const PATH = '/v1/chat/completions';
const SECRET = ['--kv-secret', 'shared-by-the-peers'];

interface Handle {
  do_remote_prefill: boolean;
  do_remote_decode: boolean;
  remote_engine_id: string;
  remote_block_ids: number[];
  remote_host: string;
  remote_port: number;
  remote_request_id: string;
}
interface Answer {
  id: string;
  choices: { message?: { content: string }; text?: string; token_ids: number[]; finish_reason: string }[];
  usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } };
  kv_transfer_params: Handle | null;
  error?: { message: string; param: string };
}

let directory: string;
let prefiller: ApiServer;
let decoder: ApiServer;
/** Of another entity. */
let otherKey: string;
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-transfer-'));
  const create = ['keys', 'create', '--entity', 'other', '--data-dir', directory];
  otherKey = /tk-\S+/.exec(String(execFileSync(process.execPath, [MAIN, ...create])))?.[0] ?? '';
  prefiller = await ApiServer.start({ flags: ['--kv-port', '0', ...SECRET] });
  const { remote_host: host, remote_port: port } = await prefill('to learn the port');
  const flags = ['--kv-peers', `${host}:${port}`, ...SECRET, '--log-level', 'warn'];
  decoder = await ApiServer.start({ flags, dataDir: directory });
}, 180_000);
afterAll(async () => {
  await prefiller?.stop();
  await decoder?.stop();
  rmSync(directory, { recursive: true, force: true });
});

/** A different prompt of some hundred tokens for each topic. */
const body = (topic: string) => ({
  messages: [{ role: 'user', content: `${topic}. `.repeat(30) }],
  temperature: 0,
  return_token_ids: true,
});
async function ask(server: ApiServer, fields: object, headers: Record<string, string> = {}): Promise<Answer> {
  const response = await server.post(PATH, fields, { headers });
  expect(response.status, await response.clone().text()).toBe(200);
  return (await response.json()) as Answer;
}
/** As a proxy sends it. */
const PREFILL = {
  do_remote_decode: true,
  do_remote_prefill: false,
  remote_engine_id: null,
  remote_block_ids: null,
  remote_host: null,
  remote_port: null,
  remote_request_id: null,
  remote_num_tokens: null,
};
async function prefill(topic: string, fields: object = {}): Promise<Handle> {
  const answer = await ask(prefiller, { ...body(topic), ...fields, max_tokens: 1, kv_transfer_params: PREFILL });
  if (!answer.kv_transfer_params) throw new Error('no handle');
  expect(answer.kv_transfer_params).toMatchObject({ remote_request_id: answer.id, tp_size: 1 });
  expect(answer.kv_transfer_params.remote_block_ids).toHaveLength(Math.floor(answer.usage.prompt_tokens / 16));
  return answer.kv_transfer_params;
}
const counts = async (server: ApiServer) => ({
  pulls: await server.metric('tandem_kv_transfer_pulls_total'),
  failures: await server.metric('tandem_kv_transfer_failures_total'),
  served: await server.metric('tandem_kv_transfer_served_total'),
  held: await server.metric('tandem_kv_transfer_held_blocks'),
});

/** The decoder must give the prefiller's own tokens; returns the prompt tokens that it did not compute. */
async function compare(topic: string, handle: Handle, fields: object = {}): Promise<number> {
  const asked = { ...body(topic), max_tokens: 24, ...fields };
  const decoded = await ask(decoder, { ...asked, kv_transfer_params: handle });
  const whole = await ask(prefiller, asked);
  expect(decoded.choices).toEqual(whole.choices);
  expect(decoded.kv_transfer_params).toBeNull();
  return decoded.usage.prompt_tokens_details.cached_tokens;
}

describe('prefill there, decode here', () => {
  test('gives the tokens of a single server, and releases the blocks', async () => {
    const before = [await counts(decoder), await counts(prefiller)] as const;
    const handle = await prefill('A long walk');
    expect(handle).toMatchObject({ do_remote_prefill: true, do_remote_decode: false, remote_host: '127.0.0.1' });
    expect((await counts(prefiller)).held).toBe(before[1].held + handle.remote_block_ids.length);
    const cached = await compare('A long walk', handle);
    expect(cached).toBe(16 * handle.remote_block_ids.length);
    expect(await counts(decoder)).toMatchObject({ pulls: before[0].pulls + 1, failures: before[0].failures });
    await expect.poll(() => counts(prefiller)).toMatchObject({ held: before[1].held, served: before[1].served + 1 });
  });

  test('sampled, with several choices and a seed', async () => {
    const handle = await prefill('A cold lake');
    expect(await compare('A cold lake', handle, { temperature: 1, seed: 5, n: 3 })).toBeGreaterThan(0);
  });

  test('as a stream, and for text completions', async () => {
    const handle = await prefill('A red bird');
    const streamed = await decoder.post(PATH, {
      ...body('A red bird'),
      max_tokens: 8,
      stream: true,
      kv_transfer_params: handle,
    });
    expect(streamed.status).toBe(200);
    await streamed.text();
    const prompt = 'Once upon a time there was a small fox. '.repeat(10);
    const first = await prefiller.post('/v1/completions', { prompt, max_tokens: 1, kv_transfer_params: PREFILL });
    const { kv_transfer_params: text } = (await first.json()) as Answer;
    const asked = { prompt, max_tokens: 12, temperature: 0 };
    const second = await decoder.post('/v1/completions', { ...asked, kv_transfer_params: text });
    const answer = (await second.json()) as Answer;
    expect(answer.usage.prompt_tokens_details.cached_tokens).toBe(16 * (text?.remote_block_ids.length ?? 0));
    const whole = (await (await prefiller.post('/v1/completions', asked)).json()) as Answer;
    expect(answer.choices[0]?.text).toBe(whole.choices[0]?.text);
  });
});

describe('blocks are not given', () => {
  test('to another tenant or another salt: the prompt is computed', async () => {
    for (const [topic, fields, headers] of [
      ['Of another tenant', {}, { authorization: `Bearer ${otherKey}` }],
      ['Of another salt', { cache_salt: 'mine' }, {}],
    ] as const) {
      const handle = await prefill(topic);
      const { failures } = await counts(decoder);
      const asked = { ...body(topic), ...fields, max_tokens: 10 };
      const answer = await ask(decoder, { ...asked, kv_transfer_params: handle }, headers);
      expect(answer.usage.prompt_tokens_details.cached_tokens).toBe(0);
      expect((await counts(decoder)).failures).toBe(failures + 1);
      expect(decoder.log).toContain('these blocks are not held for it');
      expect(answer.choices).toEqual((await ask(prefiller, asked)).choices);
    }
  });
});

describe('refused with 400', () => {
  const handle = { do_remote_prefill: true, remote_engine_id: 'e', remote_block_ids: [1], remote_host: '127.0.0.1' };
  test.each<[string, object, RegExp, string]>([
    ['an unlisted peer', { ...handle, remote_port: 1 }, /127\.0\.0\.1:1 is not among/, 'remote_host'],
    ['another host', { ...handle, remote_host: 'metadata.internal', remote_port: 80 }, /not among/, 'remote_host'],
    ['no port', handle, /needs remote_port/, 'remote_port'],
    ['a port of another type', { ...handle, remote_port: '80' }, /integer/, 'remote_port'],
    ['ids of another type', { ...handle, remote_block_ids: ['a'] }, /integer/, 'remote_block_ids'],
    ['an unknown member', { ...handle, remote_port: 1, command: 'x' }, /command/, ''],
    ['both roles', { do_remote_decode: true, do_remote_prefill: true }, /cannot both/, ''],
    ['a role that it does not have', { do_remote_decode: true }, /--kv-port/, ''],
  ])('%s', async (_, params, message, field) => {
    const response = await decoder.post(PATH, { ...body('x'), max_tokens: 1, kv_transfer_params: params });
    const { error } = (await response.json()) as Answer;
    expect(response.status).toBe(400);
    expect(error?.message).toMatch(message);
    expect(error?.param).toContain(`kv_transfer_params${field === '' ? '' : `.${field}`}`);
  });
  test('what a prefill server cannot do', async () => {
    for (const [fields, message] of [
      [{ kv_transfer_params: PREFILL, stream: true }, 'not available when `stream=True`'],
      [{ kv_transfer_params: PREFILL, use_beam_search: true, n: 2 }, 'beam search'],
      [{ kv_transfer_params: { ...handle, remote_port: 1 } }, '--kv-peers'],
    ] as const) {
      const response = await prefiller.post(PATH, { ...body('x'), max_tokens: 1, ...fields });
      expect(response.status).toBe(400);
      expect(((await response.json()) as Answer).error?.message).toContain(message);
    }
    const { kv_transfer_params: none } = await ask(prefiller, { ...body('x'), max_tokens: 1, kv_transfer_params: {} });
    expect(none).toBeNull();
  });
});

test('an engine that is started again is pulled from where the one before it was, though the port was free to choose', async () => {
  const before = await prefill('Of the first engine');
  const { failures } = await counts(decoder);
  process.kill(prefiller.enginePid(), 'SIGKILL');
  const after = await prefill('Of the second engine');
  expect(after).toMatchObject({ remote_host: before.remote_host, remote_port: before.remote_port });
  expect(after.remote_engine_id).not.toBe(before.remote_engine_id);
  expect(await compare('Of the second engine', after)).toBeGreaterThan(0);
  expect(await compare('Of the first engine', before)).toBe(0);
  expect((await counts(decoder)).failures).toBe(failures + 1);
  expect(decoder.log).toContain('the engine has been restarted');
}, 60_000);

test('when the prefill server is killed in between, the decode server still answers', async () => {
  const asked = { ...body('The last one'), max_tokens: 24 };
  const whole = await ask(prefiller, asked);
  const handle = await prefill('The last one');
  const { failures } = await counts(decoder);
  await prefiller.stop();
  const answer = await ask(decoder, { ...asked, kv_transfer_params: handle });
  expect(answer.choices).toEqual(whole.choices);
  expect(answer.usage.prompt_tokens_details.cached_tokens).toBe(0);
  expect((await counts(decoder)).failures).toBe(failures + 1);
  expect(decoder.log).toMatch(/A pull of KV blocks failed, so the prompt is computed here: 127\.0\.0\.1:\d+/);
}, 60_000);
