/** The server on quantised weights, kept between starts, and on an int8 KV cache. */
import {
  chmodSync,
  closeSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ApiServer } from './server.ts';

interface Answer {
  system_fingerprint: string;
  choices: { token_ids: number[] }[];
  usage: { prompt_tokens: number; prompt_tokens_details: { cached_tokens: number } };
}

const folder = mkdtempSync(join(tmpdir(), 'tandem-quantised-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function ask(server: ApiServer, fields: object = {}): Promise<Answer> {
  const response = await server.post('/v1/chat/completions', {
    messages: [{ role: 'user', content: 'Say something about the sea, the wind and the stars. '.repeat(8) }],
    temperature: 0,
    max_tokens: 24,
    ignore_eos: true,
    return_token_ids: true,
    ...fields,
  });
  expect(response.status, await response.clone().text()).toBe(200);
  return (await response.json()) as Answer;
}

function flipBit(path: string, at: number): void {
  const file = openSync(path, 'r+');
  const byte = Buffer.alloc(1);
  readSync(file, byte, 0, 1, at);
  byte[0]! ^= 1;
  writeSync(file, byte, 0, 1, at);
  closeSync(file);
}

test('quantised weights are made once, and again where their file is damaged', async () => {
  const dataDir = join(folder, 'weights');
  const answers: number[][] = [];
  const files: { path: string; mode: number; bytes: Buffer }[] = [];
  for (const damage of [false, false, true]) {
    const before = files[0];
    // A file that is written has the mode of a new one.
    if (before) chmodSync(before.path, 0o640);
    if (before && damage) flipBit(before.path, before.bytes.length >> 1);
    const server = await ApiServer.start({ dataDir, flags: ['--quantize', 'int4'] });
    try {
      answers.push((await ask(server)).choices[0]!.token_ids);
    } finally {
      await server.stop();
    }
    const names = readdirSync(join(dataDir, 'weights'));
    expect(names).toHaveLength(1);
    const path = join(dataDir, 'weights', names[0]!);
    files.push({ path, mode: statSync(path).mode & 0o777, bytes: readFileSync(path) });
  }
  expect(answers[1]).toEqual(answers[0]);
  expect(answers[2]).toEqual(answers[0]);
  expect(files.map(({ mode }) => mode)).toEqual([0o600, 0o640, 0o600]);
  for (const { path, bytes } of files) {
    expect(path).toBe(files[0]!.path);
    expect(bytes.equals(files[0]!.bytes)).toBe(true);
  }
}, 180_000);

const MODEL = { entity: null, project: 'p', name: 'agent', base_model: 'starter', return_existing: true };
const INT8 = ['--kv-cache-dtype', 'int8', '--served-model-name', 'starter'];

describe('--kv-cache-dtype int8', () => {
  let server: ApiServer;
  beforeAll(async () => {
    server = await ApiServer.start({ flags: INT8 });
  }, 120_000);
  afterAll(() => server?.stop());

  test('says so, and answers the same from the cache and beside others', async () => {
    expect(server.log).toContain('int8 KV cache');
    const first = await ask(server);
    expect(first.usage.prompt_tokens_details.cached_tokens).toBe(0);
    const others = [3, 4, 5].map((seed) => ask(server, { temperature: 1, seed }));
    const again = await ask(server);
    await Promise.all(others);
    expect(again.usage.prompt_tokens_details.cached_tokens).toBeGreaterThan(64);
    expect(again.choices).toEqual(first.choices);
    expect(again.system_fingerprint).toBe(first.system_fingerprint);
  });

  test('takes no models to train', async () => {
    const response = await server.post('/v1/preview/models', MODEL);
    expect(response.status).toBe(422);
    const text = await response.text();
    expect(text).toContain('--kv-cache-dtype int8');
    expect(text).toContain('base_model');
  });

  test('does not start where another run has models', async () => {
    const dataDir = join(folder, 'models');
    const plain = await ApiServer.start({ dataDir, flags: ['--served-model-name', 'starter'] });
    const fingerprint = (await ask(plain)).system_fingerprint;
    expect((await plain.post('/v1/preview/models', MODEL)).status).toBe(200);
    await plain.stop();
    await expect(ApiServer.start({ dataDir, flags: INT8 })).rejects.toThrow(
      /--kv-cache-dtype int8.*has 1: start without/,
    );
    expect((await ask(server)).system_fingerprint).not.toBe(fingerprint);
  }, 180_000);
});
