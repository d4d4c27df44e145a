/** Clients that leave, stall or flood: their sequences end, memory stays bounded, the next request is served. */
import { connect } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { API_KEY, ApiServer, waitFor } from './server.ts';

let server: ApiServer;
beforeAll(async () => {
  server = await ApiServer.start({
    flags: ['--max-stream-buffer', '64K', '--max-waiting-requests', '600', '--max-num-seqs', '16'],
  });
}, 90_000);
afterAll(() => server?.stop());

const messages = [{ role: 'user', content: 'Tell me a story.' }];
const PATH = '/v1/chat/completions';
const long = { messages, ignore_eos: true, max_tokens: 900 };

const idle = async () => {
  const { running, waiting, kvUsage } = await server.load();
  return running === 0 && waiting === 0 && kvUsage === 0;
};
const expectIdle = (timeoutMs = 20_000) => waitFor(idle, timeoutMs, () => server.log);
async function expectService(): Promise<void> {
  const response = await server.post(PATH, { messages, max_tokens: 3 });
  expect(response.status).toBe(200);
  await response.json();
}

test('500 clients that leave after half a second', async () => {
  const clients = Array.from({ length: 500 }, async (_, at) => {
    try {
      const response = await server.post(PATH, { ...long, stream: at % 2 === 0 }, { signal: AbortSignal.timeout(500) });
      await response.text();
      return 'answered';
    } catch (error) {
      return (error as Error).name;
    }
  });
  const ends = await Promise.all(clients);
  expect(ends.filter((end) => end !== 'answered').length).toBeGreaterThan(400);
  await expectIdle();
  await expectService();
}, 60_000);

test('leaving at each chunk', async () => {
  const aborted = async () =>
    (await server.metric('tandem_request_success_total\\{[^}]*finished_reason="abort"[^}]*\\}')) || 0;
  const before = await aborted();
  for (let leaveAt = 0; leaveAt < 12; leaveAt++) {
    const abort = new AbortController();
    const response = await server.post(PATH, { ...long, n: 2, temperature: 1, stream: true }, { signal: abort.signal });
    const reader = response.body?.getReader();
    for (let at = 0; at < leaveAt; at++) await reader?.read();
    abort.abort();
  }
  await expectIdle();
  expect((await aborted()) - before).toBeGreaterThanOrEqual(12);
  await expectService();
}, 30_000);

test('a reader that stalls is cut, and its generation with it', async () => {
  const body = JSON.stringify({ ...long, stream: true, logprobs: true, top_logprobs: 20, n: 8, temperature: 1 });
  const tokens = async () => (await server.metric('tandem_generation_tokens_total')) || 0;
  const before = await tokens();
  const socket = connect(Number(new URL(server.url).port), '127.0.0.1');
  socket.pause();
  socket.on('error', () => undefined);
  socket.write(
    `POST ${PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${API_KEY}\r\nContent-Type: application/json\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
  // That it runs may last less than a look takes.
  await waitFor(async () => (await tokens()) > before, 30_000);
  await expectIdle(60_000);
  // Far from the 7,200 tokens that were asked for: it was cut, not served to its end.
  expect((await tokens()) - before).toBeLessThan(7200);
  expect(await server.metric('tandem_request_success_total')).not.toBeNaN();
  socket.destroy();
  await expectService();
}, 90_000);

test('a full queue is 429 with Retry-After, before any stream begins', async () => {
  const abort = new AbortController();
  const fill = Array.from({ length: 6 }, () =>
    server.post(PATH, { ...long, n: 100, temperature: 1 }, { signal: abort.signal }).catch(() => undefined),
  );
  await waitFor(
    async () => (await server.load()).waiting > 550,
    20_000,
    () => server.log,
  );
  for (const stream of [false, true]) {
    const response = await server.post(PATH, { ...long, n: 100, temperature: 1, stream });
    expect(response.status).toBe(429);
    expect(Number(response.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
    const { error } = (await response.json()) as { error: object };
    expect(error).toMatchObject({ type: 'RateLimitError', code: 429, param: null });
  }
  abort.abort();
  await Promise.all(fill);
  await expectIdle();
  await expectService();
}, 60_000);

test('a burst that the queue has room for is taken whole, however slowly prompts are rendered', async () => {
  const roomy = await ApiServer.start({ flags: ['--max-waiting-requests', '2000', '--tokenizer-workers', '1'] });
  try {
    const statuses = await Promise.all(
      Array.from({ length: 1200 }, async () => {
        const response = await roomy.post(PATH, { messages, max_tokens: 1 });
        await response.arrayBuffer();
        return response.status;
      }),
    );
    expect(new Set(statuses)).toEqual(new Set([200]));
  } finally {
    await roomy.stop();
  }
}, 90_000);

test('prompts of one request that are together more than may wait are served, as one prompt of that size is', async () => {
  const narrow = await ApiServer.start({ flags: ['--max-waiting-tokens', '8', '--max-num-seqs', '1'] });
  try {
    const ids = Array.from({ length: 6 }, () => 70);
    for (const prompt of [Array.from({ length: 36 }, () => 70), Array.from({ length: 6 }, () => ids)]) {
      const response = await narrow.post('/v1/completions', { prompt, max_tokens: 40, ignore_eos: true });
      expect([response.status, await response.json()]).toMatchObject([200, { usage: { prompt_tokens: 36 } }]);
    }
  } finally {
    await narrow.stop();
  }
}, 90_000);
