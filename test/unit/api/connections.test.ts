/** Connections: what waits on one ends with it, and none is held by whoever does not close it. */
import { connect, type Socket } from 'node:net';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { ChoiceDelta } from '../../../src/control/sessions/session.ts';
import { delta, KEY, startTestServer, type TestServer } from './fakes.ts';

const CHAT = '/v1/chat/completions';
const MAX_BUFFER = 64 * 1024;

let server: TestServer;
let sockets: Socket[];
beforeEach(async () => {
  server = await startTestServer({ maxStreamBufferBytes: MAX_BUFFER, requestTimeoutMs: 1500 });
  sockets = [];
});
afterEach(async () => {
  for (const socket of sockets) socket.destroy();
  await server.close();
});

/** Its own end stays open until it is destroyed. */
function open(bytes: string): Socket {
  const socket = connect({ port: server.port, host: '127.0.0.1', allowHalfOpen: true });
  sockets.push(socket);
  socket.on('error', () => undefined);
  socket.write(bytes);
  return socket;
}

function chat(stream: boolean): string {
  const body = JSON.stringify({ messages: [], stream });
  const head = `Host: a\r\nAuthorization: Bearer ${KEY}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}`;
  return `POST ${CHAT} HTTP/1.1\r\n${head}\r\n\r\n${body}`;
}

const generations = (count: number) =>
  vi.waitFor(() => expect(server.sessions.generations).toHaveLength(count), { timeout: 10_000 });
const aborted = (which: readonly boolean[]) =>
  vi.waitFor(() => expect(server.sessions.generations.map((generation) => generation.aborted)).toEqual(which), {
    timeout: 10_000,
  });

test('requests that wait behind another of their connection end when it does', async () => {
  const warnings: string[] = [];
  const note = (warning: Error) => void warnings.push(warning.message);
  process.on('warning', note);
  server.sessions.script = async function* (_, generation) {
    await generation.untilAborted();
    yield delta();
  };
  const socket = open(chat(false).repeat(10) + chat(true).repeat(10));
  await generations(20);
  socket.destroy();
  await aborted(Array<boolean>(20).fill(true));
  process.off('warning', note);
  expect(warnings).toEqual([]);
});

test('a stream that waits behind another, and piles up, ends with its generation', async () => {
  let first = true;
  server.sessions.script = async function* (_, generation): AsyncGenerator<ChoiceDelta> {
    if (first) {
      first = false;
      await generation.untilAborted();
    }
    for (let at = 0; !generation.aborted && at < 100; at++) {
      yield delta({ text: 'x'.repeat(MAX_BUFFER / 4), tokenIds: [1] });
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  };
  open(chat(false) + chat(true)).resume();
  await generations(2);
  await aborted([true, true]);
});

test.each(['at once', 'later'])('what follows a request that ends its connection is ignored (%s)', async (when) => {
  let finish: () => void = () => undefined;
  const told = new Promise<void>((resolve) => (finish = resolve));
  server.sessions.script = async function* () {
    await told;
    yield delta({ text: 'own', tokenIds: [1], finish: 'stop' });
  };
  const last = chat(false).replace('Host: a', 'Host: a\r\nConnection: close');
  const more = [chat(false), 'nonsense', chat(false)];
  const socket = open(when === 'at once' ? last + more.join('') : last);
  let answer = '';
  socket.on('data', (chunk: Buffer) => (answer += chunk.toString('latin1')));
  const ended = new Promise((resolve) => socket.once('end', resolve));
  await generations(1);
  if (when === 'later') {
    for (const bytes of more) {
      socket.write(bytes);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
  finish();
  await ended;
  expect(answer.match(/HTTP\/1.1 \d+/g)).toEqual(['HTTP/1.1 200']);
  expect(answer).toContain('"own"');
  expect(server.sessions.generations).toHaveLength(1);
});

test.each(['half', 'whole'])('a client that closes its end (%s) has left, whatever it has sent before', async (how) => {
  server.sessions.script = async function* (_, generation) {
    await generation.untilAborted();
    yield delta();
  };
  const last = chat(false).replace('Host: a', 'Host: a\r\nConnection: close');
  const clients = [open(chat(false)), open(chat(true)), open(last + chat(false))];
  await generations(3);
  for (const client of clients) {
    if (how === 'half') client.end();
    else client.destroy();
  }
  await aborted([true, true, true]);
});

test('what was sent ahead on a connection is answered while the server drains; the last answer ends it', async () => {
  await server.close();
  let isDraining = false;
  server = await startTestServer({}, { draining: () => isDraining });
  let finish: () => void = () => undefined;
  const told = new Promise<void>((resolve) => (finish = resolve));
  server.sessions.script = async function* () {
    await told;
    yield delta({ text: 'last', tokenIds: [1], finish: 'stop' });
  };
  const socket = open(chat(false).repeat(3));
  let answer = '';
  socket.on('data', (chunk: Buffer) => (answer += chunk.toString('latin1')));
  const ended = new Promise((resolve) => socket.once('end', resolve));
  await generations(3);
  isDraining = true;
  finish();
  await ended;
  expect(answer.match(/HTTP\/1.1 200/g)).toHaveLength(3);
  expect(answer.match(/Connection: close/g)).toHaveLength(1);
});

test('a connection on which nothing has been sent holds up no drain', async () => {
  const socket = connect({ port: server.port, host: '127.0.0.1' });
  sockets.push(socket);
  await server.call('/health');
  const begun = performance.now();
  await server.close(30_000);
  expect(performance.now() - begun).toBeLessThan(20_000);
});

test.each([false, true])('a drain waits for a slow reader of what has been answered (stream: %s)', async (stream) => {
  await server.close();
  server = await startTestServer();
  const text = 'x'.repeat(8 * 2 ** 20);
  server.sessions.script = async function* () {
    yield delta({ text, tokenIds: [1], finish: 'stop' });
  };
  const socket = open(chat(stream));
  let size = 0;
  socket.pause();
  socket.on('data', (chunk: Buffer) => (size += chunk.length));
  const ended = new Promise((resolve) => socket.once('close', resolve));
  await generations(1);
  // Until it has been written as far as the reader takes it.
  await new Promise((resolve) => setTimeout(resolve, 500));
  const drained = server.close(60_000);
  await new Promise((resolve) => setTimeout(resolve, 500));
  socket.resume();
  await drained;
  socket.end();
  await ended;
  expect(size).toBeGreaterThan(text.length);
});

test('a drain for longer than a timer can wait cuts nothing early', async () => {
  let finish: () => void = () => undefined;
  const told = new Promise<void>((resolve) => (finish = resolve));
  server.sessions.script = async function* () {
    await told;
    yield delta({ text: 'last', tokenIds: [1], finish: 'stop' });
  };
  const answer = server.post(CHAT, { messages: [{ role: 'user', content: 'a' }] });
  await generations(1);
  const drained = server.close(2 ** 31);
  await new Promise((resolve) => setTimeout(resolve, 200));
  finish();
  expect((await answer).status).toBe(200);
  await drained;
});

test.each([
  ['bytes that are no HTTP', 'nonsense\r\n\r\n'],
  ['a header that never ends', 'GET /health HTTP/1.1\r\nX-Slow: '],
  ['nothing', ''],
  ['a giant header', `GET /health HTTP/1.1\r\nX-Big: ${'x'.repeat(40_000)}\r\n\r\n`],
])(
  '%s: answered and closed, though the sender keeps its end open',
  async (_name, bytes) => {
    const socket = open(bytes);
    let answer = '';
    socket.on('data', (chunk: Buffer) => (answer += chunk.toString('latin1')));
    let closed = false;
    socket.on('error', () => (closed = true));
    await vi.waitFor(() => expect(answer).toMatch(/^HTTP\/1.1 4\d\d /), { timeout: 10_000 });
    // What is sent to a connection that has gone fails; to one that is only half closed it does not.
    await vi.waitFor(() => socket.write('\r\n') && expect(closed).toBe(true), { timeout: 15_000, interval: 500 });
  },
  30_000,
);

test.each([
  ['a request whose head came too late', 20],
  ['a request on a connection that had said nothing', 0],
])(
  '%s is refused and nothing else: it is not run',
  async (_name, early) => {
    const bytes = chat(false);
    const socket = open(bytes.slice(0, early));
    let answer = '';
    socket.on('data', (chunk: Buffer) => (answer += chunk.toString('latin1')));
    await vi.waitFor(() => expect(answer).toMatch(/^HTTP\/1.1 408 /), { timeout: 10_000 });
    socket.write(bytes.slice(early));
    let closed = false;
    socket.once('close', () => (closed = true));
    await vi.waitFor(() => socket.write('\r\n') && expect(closed).toBe(true), { timeout: 15_000, interval: 100 });
    expect(server.sessions.generations).toEqual([]);
    expect(answer.match(/HTTP\/1.1/g)).toHaveLength(1);
  },
  30_000,
);

test.each([
  ['bytes that are no HTTP', 'nonsense\r\n\r\n', 400],
  ['a giant header', `GET /health HTTP/1.1\r\nX-Big: ${'x'.repeat(40_000)}\r\n\r\n`, 431],
  ['a header that never ends', 'GET /health HTTP/1.1\r\nX-Slow: ', 408],
  [
    'a body that is no body',
    chat(false).replace(/Content-Length: [^]*/, 'Transfer-Encoding: chunked\r\n\r\nno\r\n'),
    400,
  ],
])('%s: answered on a connection that has been used before, too', async (_name, bytes, status) => {
  const socket = open('GET /health HTTP/1.1\r\nHost: a\r\n\r\n');
  let answers = '';
  socket.on('data', (chunk: Buffer) => (answers += chunk.toString('latin1')));
  const ended = new Promise((resolve) => socket.once('end', resolve));
  await vi.waitFor(() => expect(answers).toMatch(/^HTTP\/1.1 200 /), { timeout: 10_000 });
  socket.write(bytes);
  await ended;
  expect(answers.match(/HTTP\/1.1 \d+/g)).toEqual(['HTTP/1.1 200', `HTTP/1.1 ${status}`]);
});

test('bytes that are no HTTP behind a request whose stream has begun end it, and nothing is written into it', async () => {
  server.sessions.script = async function* (_, generation) {
    yield delta({ text: 'own', tokenIds: [1] });
    await generation.untilAborted();
  };
  const socket = open(chat(true));
  let answer = '';
  socket.on('data', (chunk: Buffer) => (answer += chunk.toString('latin1')));
  const closed = new Promise((resolve) => socket.once('close', resolve));
  await vi.waitFor(() => expect(answer).toContain('"own"'), { timeout: 10_000 });
  socket.on('end', () => socket.end());
  socket.write('nonsense\r\n\r\n');
  await closed;
  await aborted([true]);
  expect(answer.match(/HTTP\/1.1 \d+/g)).toEqual(['HTTP/1.1 200']);
});

test('an answer that overtakes the body of its request ends the connection, once all of it has come', async () => {
  await server.close();
  // So long that it is not what ends the connection.
  server = await startTestServer({ requestTimeoutMs: 600_000 });
  const bytes = chat(false).replace(KEY, 'none');
  const whole = open(bytes);
  const early = open(bytes.slice(0, -20));
  const answers = new Map([whole, early].map((socket) => [socket, '']));
  for (const socket of answers.keys()) {
    socket.on('data', (chunk: Buffer) => answers.set(socket, answers.get(socket) + chunk.toString('latin1')));
    await vi.waitFor(() => expect(answers.get(socket)).toMatch(/^HTTP\/1.1 401 [^]*\}$/), { timeout: 10_000 });
  }
  // Later than proxies let go of it: one that sends on a connection that is being closed makes a 502 of that.
  expect(answers.get(whole)).toContain('Connection: keep-alive\r\nKeep-Alive: timeout=130\r\n');
  expect(answers.get(early)).toContain('Connection: close');
  let isReset = false;
  early.on('error', () => (isReset = true));
  const closed = new Promise((resolve) => early.once('close', resolve));
  for (const byte of bytes.slice(-20)) early.write(byte);
  early.end();
  await closed;
  expect(isReset).toBe(false);
});

test.each(['whole', 'stalled'])(
  'a body that is refused while it comes is read on where its connection ends with the answer (%s)',
  async (rest) => {
    await server.close();
    // So long that it is not what ends the connection.
    server = await startTestServer({ requestTimeoutMs: 600_000 });
    const bytes = server.deps.settings.maxBodyBytes + 1;
    const head = `Host: a\r\nAuthorization: Bearer ${KEY}\r\nContent-Type: application/json\r\nConnection: close`;
    const socket = open(`POST ${CHAT} HTTP/1.1\r\n${head}\r\nContent-Length: ${bytes}\r\n\r\n`);
    let answer = '';
    const told: string[] = [];
    socket.on('data', (chunk: Buffer) => (answer += chunk.toString('latin1')));
    socket.on('error', (error: NodeJS.ErrnoException) => told.push(error.code ?? '?'));
    socket.on('end', () => told.push('end'));
    await vi.waitFor(() => expect(answer).toMatch(/^HTTP\/1.1 413 [^]*\}$/), { timeout: 10_000 });
    // In pieces: a reset shows to the one behind it.
    for (let piece = 0; piece < 4; piece++) {
      socket.write(Buffer.alloc(rest === 'whole' ? Math.ceil(bytes / 4) : 1000));
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    expect(told).toEqual(['end']);
    let closed = false;
    socket.once('close', () => (closed = true));
    // It is not kept for longer, whether the rest has come or not.
    await vi.waitFor(() => socket.write('\r\n') && expect(closed).toBe(true), { timeout: 15_000, interval: 100 });
  },
  30_000,
);

test('a body that comes too late is read on behind its answer, and its request is not run', async () => {
  const bytes = chat(false);
  const socket = open(bytes.slice(0, -20));
  let answer = '';
  const told: string[] = [];
  socket.on('data', (chunk: Buffer) => (answer += chunk.toString('latin1')));
  socket.on('error', (error: NodeJS.ErrnoException) => told.push(error.code ?? '?'));
  socket.on('end', () => told.push('end'));
  await vi.waitFor(() => expect(told).toEqual(['end']), { timeout: 10_000 });
  expect(answer).toMatch(/^HTTP\/1.1 408 [^]*\}$/);
  for (const byte of bytes.slice(-20)) {
    socket.write(byte);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  expect(told).toEqual(['end']);
  let closed = false;
  socket.once('close', () => (closed = true));
  await vi.waitFor(() => socket.write('\r\n') && expect(closed).toBe(true), { timeout: 15_000, interval: 100 });
  expect(server.sessions.generations).toEqual([]);
}, 30_000);
