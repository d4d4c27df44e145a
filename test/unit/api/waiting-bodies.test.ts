/** Requests that wait hold nothing of their bodies that their answers do not need; before they are queued, not more than may be held. */
import { request } from 'node:http';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { FakeGeneration, KEY, startTestServer, type TestServer } from './fakes.ts';

const COUNT = 8;
const LARGE = 4 * 2 ** 20;
const messages = [{ role: 'user', content: 'Hi', note: 'x'.repeat(LARGE) }];

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());

const PATHS = [
  ['/v1/chat/completions', { messages: [{ role: 'user', content: 'Hi' }] }],
  ['/v1/completions', { prompt: 'Hi' }],
  ['/v1/messages', { messages: [{ role: 'user', content: 'Hi' }], max_tokens: 1 }],
  ['/v1/responses', { input: 'Hi', store: false }],
] as const;

/** Sends the bytes, which lie outside of the heap, and reads no answer. */
function send(path: string, body: Buffer): () => void {
  const headers = { authorization: `Bearer ${KEY}`, 'content-type': 'application/json', 'content-length': body.length };
  const sent = request(server.url + path, { method: 'POST', headers, agent: false });
  sent.on('error', () => undefined).on('response', (response) => response.resume());
  sent.end(body);
  return () => sent.destroy();
}

function heapBytes(): number {
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
  return process.memoryUsage().heapUsed;
}

test.each([
  ['/v1/chat/completions', { messages, user: 'x'.repeat(LARGE) }],
  ['/v1/chat/completions', { messages, stream: true }],
  ['/v1/completions', { prompt: 'Hi', user: 'x'.repeat(LARGE) }],
  ['/v1/completions', { prompt: 'x'.repeat(LARGE), truncate_prompt_tokens: 1, stream: true }],
  ['/v1/messages', { messages, max_tokens: 1 }],
  ['/v1/messages', { messages, max_tokens: 1, stream: true, unknown: 'x'.repeat(LARGE) }],
  ['/v1/responses', { input: 'Hi', unknown: 'x'.repeat(LARGE) }],
  ['/v1/responses', { input: messages, store: false, stream: true }],
])('%s', async (path, fields) => {
  const body = Buffer.from(JSON.stringify(fields));
  let waiting = 0;
  server.sessions.start = () => {
    waiting++;
    const forEver = async function* (generation: FakeGeneration) {
      await generation.untilAborted();
    };
    return Promise.resolve(new FakeGeneration(1, forEver));
  };
  const before = heapBytes();
  const leave = Array.from({ length: COUNT }, () => send(path, body));
  while (waiting < COUNT) await new Promise((resolve) => setTimeout(resolve, 10));
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(heapBytes() - before).toBeLessThan((COUNT / 2) * LARGE);
  for (const end of leave) end();
});

test.each(PATHS)(
  '%s: so many wait for a grammar or an adapter with their bodies as may be held',
  async (path, body) => {
    const maxBodyBytes = LARGE;
    const small = await startTestServer({ maxBodyBytes });
    const queue: (() => void)[] = [];
    let begun = 0;
    small.sessions.start = () =>
      new Promise((resolve) => {
        const forEver = async function* (generation: FakeGeneration) {
          begun++;
          await generation.untilAborted();
        };
        queue.push(() => resolve(new FakeGeneration(1, forEver)));
      });
    const controller = new AbortController();
    const padded = JSON.stringify({ ...body, unknown: 'x'.repeat(maxBodyBytes - 200) });
    const ask = () => {
      const headers = { 'content-type': 'application/json' };
      const sent = small.call(path, { method: 'POST', headers, body: padded, signal: controller.signal });
      return sent.then(({ status }) => status).catch(() => 0);
    };
    const until = async (condition: () => boolean) => {
      while (!condition()) await new Promise((resolve) => setTimeout(resolve, 5));
    };
    try {
      const held = Array.from({ length: 16 }, () => ask());
      await until(() => queue.length === 16);
      expect(await ask()).toBe(503);
      // Those that are queued have left their bodies behind.
      for (const start of queue.splice(0)) start();
      await until(() => begun === 16);
      held.push(ask());
      await until(() => queue.length === 1);
      controller.abort();
      await Promise.all(held);
    } finally {
      await small.close();
    }
  },
);
