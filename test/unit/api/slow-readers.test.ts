/** Readers of an answer, or of what is left of a stream that has ended: one that reads slowly gets all of it, one that stalls is cut. */
import { connect, type Socket } from 'node:net';
import { expect, test, vi } from 'vitest';
import type { ChoiceDelta } from '../../../src/control/sessions/session.ts';
import { delta, KEY, startTestServer } from './fakes.ts';

/** More than the kernel takes at once. */
const ANSWER_BYTES = 24 * 2 ** 20;
const PIECE = 'x'.repeat(2 ** 18);

const server = (idleMs: number) => startTestServer({ maxStreamBufferBytes: 2 * ANSWER_BYTES }, {}, idleMs);

function script(): ChoiceDelta[] {
  const pieces = Array.from({ length: ANSWER_BYTES / PIECE.length }, () => delta({ text: PIECE, tokenIds: [1] }));
  return [...pieces, delta({ finish: 'stop' })];
}

function ask(port: number, stream: boolean): Socket {
  const socket = connect(port, '127.0.0.1');
  const body = JSON.stringify({ messages: [], stream });
  const head = `Host: a\r\nAuthorization: Bearer ${KEY}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}`;
  socket.pause();
  socket.write(`POST /v1/chat/completions HTTP/1.1\r\n${head}\r\n\r\n${body}`);
  return socket;
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));

test.concurrent.each([
  ['an answer', false],
  ['what is left of a stream', true],
])(
  '%s: a slow reader is not cut',
  async (_name, stream) => {
    const idleMs = 1500;
    const slow = await server(idleMs);
    slow.sessions.script = script;
    const socket = ask(slow.port, stream);
    let failed = false;
    socket.on('error', () => (failed = true));
    try {
      let bytes = 0;
      // Less than the third of the kernel's buffer within the time that a reader may rest.
      for (const end = performance.now() + 5 * idleMs; performance.now() < end; await pause(idleMs / 10)) {
        bytes += (socket.read(Math.min(socket.readableLength, 2 ** 15)) as Buffer | null)?.length ?? 0;
      }
      expect(bytes).toBeGreaterThan(0);
      expect(bytes).toBeLessThan(ANSWER_BYTES / 4);
      socket.on('data', (more: Buffer) => (bytes += more.length)).resume();
      await vi.waitFor(() => expect(bytes).toBeGreaterThanOrEqual(ANSWER_BYTES), { timeout: 30_000, interval: 50 });
      expect(failed).toBe(false);
    } finally {
      socket.destroy();
      await slow.close();
    }
  },
  60_000,
);

test.each([
  ['an answer', false],
  ['what is left of a stream', true],
])(
  '%s: a reader that stalls is cut',
  async (_name, stream) => {
    const stalled = await server(200);
    stalled.sessions.script = script;
    const socket = ask(stalled.port, stream);
    let failed = false;
    socket.on('error', () => (failed = true));
    try {
      // What is sent to a connection that has gone fails, whether anything was read of it or not.
      await vi.waitFor(() => socket.write('\n') && expect(failed).toBe(true), { timeout: 30_000, interval: 100 });
    } finally {
      socket.destroy();
      await stalled.close();
    }
  },
  60_000,
);

test('an answer that waits behind another of its connection is not cut', async () => {
  const idleMs = 200;
  const pipelined = await server(idleMs);
  pipelined.sessions.script = async function* () {
    yield delta({ text: 'Hi', tokenIds: [1] });
    await pause(10 * idleMs);
    yield delta({ finish: 'stop' });
  };
  const socket = ask(pipelined.port, true);
  let read = '';
  socket.on('data', (bytes: Buffer) => (read += bytes.toString('latin1'))).resume();
  try {
    socket.write(`GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${KEY}\r\n\r\n`);
    await vi.waitFor(() => expect(read).toContain('"object":"list"'), { timeout: 30_000 });
    expect(read).toContain('[DONE]');
  } finally {
    socket.destroy();
    await pipelined.close();
  }
}, 60_000);
