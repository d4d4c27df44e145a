/** Answers that are not streamed share a bound, from their growth to the end of their reading. */
import { EventEmitter } from 'node:events';
import type { ServerResponse } from 'node:http';
import { connect } from 'node:net';
import { expect, test, vi } from 'vitest';
import { AnswerRoom, deltaBytes } from '../../../src/api/generation/answer-room.ts';
import type { ChoiceDelta } from '../../../src/control/sessions/session.ts';
import { delta, errorOf, KEY, startTestServer } from './fakes.ts';

const MIB = 2 ** 20;
/** More than the kernel takes at once. */
const ANSWER_CHARS = 24 * MIB;
const WAIT = { timeout: 20_000, interval: 50 };
const response = () => Object.assign(new EventEmitter(), { destroyed: false }) as unknown as ServerResponse;
const room = (heap = Infinity) => new AnswerRoom(MIB, heap);

test('eight of the largest fit, whoever asked for them; the next one is told to come later, without what it held', () => {
  const answers = room();
  for (const tenant of ['a', 'b', 'a', 'b', 'a', 'b', 'a', 'b']) answers.open(tenant, response()).grow(MIB);
  expect(answers.held).toBe(8 * MIB);
  const late = response();
  expect(() => answers.open('a', late).grow(MIB)).toThrow(expect.objectContaining({ status: 503 }));
  late.emit('close');
  expect(answers.held).toBe(8 * MIB);
});

test('whoever holds less than an equal share goes on', () => {
  const answers = room();
  for (let answer = 0; answer < 8; answer++) answers.open('greedy', response()).grow(MIB);
  const other = answers.open('other', response());
  for (let mib = 0; mib < 4; mib++) other.grow(MIB / 4);
  expect(() => answers.open('greedy', response()).grow(MIB / 4)).toThrow(/ask for a stream/);
});

test('room comes back when the response closes, and only then', () => {
  const answers = room();
  const [first, second] = [response(), response()];
  const one = answers.open('a', first);
  one.grow(MIB / 2);
  one.grow(MIB / 4);
  answers.open('a', second).grow(MIB / 4);
  expect(answers.held).toBe(MIB);
  first.emit('close');
  expect(answers.held).toBe(MIB / 4);
  second.emit('close');
  expect(answers.held).toBe(0);
});

test('an answer that was kept is read however large it is, and waits like others for those that hold all room', () => {
  const answers = room();
  const large = response();
  answers.open('a', large).reread(100 * MIB);
  expect(answers.held).toBe(100 * MIB);
  expect(() => answers.open('a', response()).reread(MIB)).toThrow(expect.objectContaining({ status: 503 }));
  expect(() => answers.open('a', response()).grow(MIB)).toThrow(expect.objectContaining({ status: 503 }));
  large.emit('close');
  answers.open('a', response()).grow(MIB);
  expect(() => answers.open('a', response()).reread(100 * MIB)).toThrow(expect.objectContaining({ status: 503 }));
  answers.open('a', response()).reread(7 * MIB);
});

test('an answer whose reader has gone takes nothing', () => {
  const answers = room();
  const gone = Object.assign(response(), { destroyed: true });
  answers.open('a', gone).grow(MIB / 2);
  expect(answers.held).toBe(0);
});

test('one answer ends at its own bound, and all of them at half of the heap', () => {
  expect(() =>
    room()
      .open('a', response())
      .grow(MIB + 1),
  ).toThrow(expect.objectContaining({ status: 400 }));
  const answers = room(3 * MIB);
  answers.open('a', response()).grow(MIB);
  expect(() => answers.open('a', response()).grow(MIB)).toThrow(expect.objectContaining({ status: 503 }));
});

test('all that a delta brings counts: both texts, calls, ids, log-probabilities with their alternatives', () => {
  const entry = { token: 'a', logprob: -1, bytes: [97], tokenId: 1 };
  const scored = (alternatives: number) =>
    deltaBytes(
      delta({ logprobs: [{ ...entry, chars: 1, at: 0, top: Array.from({ length: alternatives }, () => entry) }] }),
    );
  expect(deltaBytes(delta())).toBe(0);
  expect(deltaBytes(delta({ text: 'abc' }))).toBe(6);
  expect(deltaBytes(delta({ reasoning: 'abc' }))).toBe(6);
  expect(deltaBytes(delta({ tokenIds: [1, 2] }))).toBe(16);
  expect(deltaBytes(delta({ toolCalls: [{ index: 0, arguments: 'x'.repeat(1000) }] }))).toBeGreaterThan(2000);
  expect(scored(20)).toBe(21 * scored(0));
  expect(scored(0)).toBeGreaterThan(0);
});

test.each([
  ['/v1/chat/completions', { messages: [] }],
  ['/v1/completions', { prompt: 'a' }],
])(
  '%s: readers that drip hold no more than the bound; others are refused until they end',
  async (path, fields) => {
    const server = await startTestServer({ maxAnswerBytes: 2 * ANSWER_CHARS + MIB });
    const text = 'x'.repeat(ANSWER_CHARS);
    server.sessions.script = (): ChoiceDelta[] => [delta({ text, tokenIds: [1] }), delta({ finish: 'stop' })];
    const body = JSON.stringify(fields);
    const head = `Host: a\r\nAuthorization: Bearer ${KEY}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}`;
    const request = `POST ${path} HTTP/1.1\r\n${head}\r\n\r\n${body}`;
    const readers = Array.from({ length: 6 }, () => connect(server.port, '127.0.0.1').pause());
    // Whole answers, and two that wait behind others on their connections.
    for (const [at, socket] of readers.entries()) socket.write(at < 2 ? request + request : request);
    try {
      await vi.waitFor(async () => {
        const refused = await server.post(path, fields);
        expect(refused.status).toBe(503);
        expect((await errorOf(refused)).message).toContain('ask for a stream');
      }, WAIT);
      for (const socket of readers) socket.destroy();
      await vi.waitFor(async () => {
        const answered = await server.post(path, fields);
        expect((await answered.text()).length).toBeGreaterThan(text.length);
      }, WAIT);
    } finally {
      for (const socket of readers) socket.destroy();
      await server.close();
    }
  },
  60_000,
);
