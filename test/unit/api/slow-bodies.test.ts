/** Bodies that are on their way for long take memory: one entity's are bounded, and leave room for those of others. */
import { connect } from 'node:net';
import { PassThrough } from 'node:stream';
import type { Context } from 'koa';
import { expect, test, vi } from 'vitest';
import { ClientGoneError } from '../../../src/api/errors.ts';
import { uploadOf } from '../../../src/api/middleware/upload.ts';
import { startTestServer } from './fakes.ts';

const CHAT = '/v1/chat/completions';
const MAX_BYTES = 64 * 1024;

test('an entity whose bodies take all of the room does not keep others out', async () => {
  const find = (token: string) => (/^[ab]$/.test(token) ? { keyId: token, entity: token } : null);
  const server = await startTestServer({ maxBodyBytes: MAX_BYTES }, { keys: { find } });
  const answers: string[] = [];
  const sockets = Array.from({ length: 20 }, (_, at) => {
    const socket = connect(server.port, '127.0.0.1');
    socket.on('data', (bytes) => (answers[at] = (answers[at] ?? '') + bytes.toString()));
    socket.write(
      `POST ${CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nContent-Type: application/json\r\n` +
        `Content-Length: ${MAX_BYTES}\r\n\r\n${' '.repeat(MAX_BYTES - 1)}`,
    );
    return socket;
  });
  try {
    // 16 are let in and wait for their last byte.
    await vi.waitFor(() => expect(answers.filter(Boolean).length).toBe(4), { timeout: 30_000 });
    for (const answer of answers.filter(Boolean)) expect(answer).toMatch(/^HTTP\/1.1 503 .*Too many large requests/s);
    const ask = (key: string) => server.post(CHAT, { messages: [] }, { authorization: `Bearer ${key}` });
    expect((await ask('a')).status).toBe(503);
    expect((await ask('b')).status).toBe(200);
  } finally {
    for (const socket of sockets) socket.destroy();
    await server.close();
  }
}, 60_000);

test('a body gives its room back when it has been read, whether it was taken or refused', async () => {
  const server = await startTestServer({ maxBodyBytes: MAX_BYTES });
  const texts = { taken: '{"messages":[]}', refused: '{"messages":' };
  for (let at = 0; at < 20; at++) {
    expect((await server.post(CHAT, texts.taken.padEnd(MAX_BYTES))).status).toBe(200);
    expect((await server.post(CHAT, texts.refused.padEnd(MAX_BYTES))).status).toBe(400);
  }
  await server.close();
}, 60_000);

function upload() {
  const req = Object.assign(new PassThrough(), { headers: {}, complete: false });
  return { req, bytes: uploadOf({ req, get: () => '' } as unknown as Context, 1000) };
}

test.each([false, true])(
  'a sender of a file that leaves while it is read has gone, its last byte sent: %s',
  async (complete) => {
    const { req, bytes } = upload();
    req.write('x');
    expect((await bytes.next()).value).toEqual(Buffer.from('x'));
    req.write('y');
    req.complete = complete;
    req.destroy(Object.assign(new Error('aborted'), { code: 'ECONNRESET' }));
    await expect(bytes.next()).rejects.toThrow(ClientGoneError);
  },
);

test('a sender of a file may take its time, is cut after a minute without a byte, and not after its end', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  try {
    const slow = upload();
    for (let piece = 0; piece < 3; piece++) {
      slow.req.write('x');
      expect((await slow.bytes.next()).value).toEqual(Buffer.from('x'));
      vi.advanceTimersByTime(50_000);
    }
    slow.req.complete = true;
    slow.req.end();
    expect((await slow.bytes.next()).done).toBe(true);
    const destroy = vi.spyOn(slow.req, 'destroy');
    vi.advanceTimersByTime(120_000);
    expect(destroy).not.toHaveBeenCalled();
    const silent = upload();
    const next = silent.bytes.next();
    next.catch(() => undefined);
    await new Promise(setImmediate);
    vi.advanceTimersByTime(60_000);
    await expect(next).rejects.toThrow('did not arrive in time');
  } finally {
    vi.useRealTimers();
  }
});
