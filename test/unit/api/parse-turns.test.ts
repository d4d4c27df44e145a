/** Large bodies: one at a time, entities in turn, others in between. */
import { EventEmitter } from 'node:events';
import { Readable } from 'node:stream';
import type { Context } from 'koa';
import { expect, test } from 'vitest';
import { ClientGoneError } from '../../../src/api/errors.ts';
import { BodyReader } from '../../../src/api/middleware/body.ts';
import { ParseTurns } from '../../../src/api/middleware/parse-turns.ts';

const WORK_MS = 20;

test('entities have their turns, and as much time is left to others as the work took', async () => {
  const turns = new ParseTurns();
  const order: string[] = [];
  const rests: number[] = [];
  let ended = -Infinity;
  const work = (name: string) => () => {
    rests.push(performance.now() - ended);
    order.push(name);
    for (const end = performance.now() + WORK_MS; performance.now() < end;);
    ended = performance.now();
    return name;
  };
  const done = await Promise.all(['a1', 'a2', 'a3', 'b1'].map((name) => turns.run(name.slice(0, 1), work(name))));
  expect(done).toEqual(['a1', 'a2', 'a3', 'b1']);
  expect(order).toEqual(['a1', 'a2', 'b1', 'a3']);
  // Timers may be a millisecond early, never more.
  for (const rest of rests) expect(rest).toBeGreaterThan(WORK_MS - 2);
});

test('work that fails fails alone', async () => {
  const turns = new ParseTurns();
  const fails = turns.run('a', () => {
    throw new Error('no');
  });
  const works = turns.run('a', () => 1);
  await expect(fails).rejects.toThrow('no');
  expect(await works).toBe(1);
});

/** A body that has come whole. */
function context(text: string, gone = false, entity = 'a'): Context {
  const req = Object.assign(Readable.from([Buffer.from(text)]), { headers: {}, complete: true });
  const get = (name: string) => (name === 'content-type' ? 'application/json' : '');
  const res = Object.assign(new EventEmitter(), { closed: gone, destroyed: gone });
  return { req, res, get, state: { caller: { entity } } } as unknown as Context;
}

test('a large body whose client has left is not parsed; what was held is free again', async () => {
  const large = JSON.stringify({ text: 'x'.repeat(100_000) });
  const bodies = new BodyReader(large.length, 0);
  for (let round = 0; round < 3; round++) {
    const requests = Array.from({ length: 15 }, (_, at) => context(large, at % 2 === 0));
    const read = requests.map((request) => bodies.json(request));
    const results = await Promise.allSettled([...read, bodies.json(context('{"small":1}'))]);
    for (const [at, result] of results.entries()) {
      if (at % 2 === 0) expect(result).toMatchObject({ reason: expect.any(ClientGoneError) as Error });
      else expect(result.status).toBe('fulfilled');
    }
    for (const { res } of requests) res.emit('close');
  }
});

test('a body counts until its request has left it behind or is over', async () => {
  const large = JSON.stringify({ text: 'x'.repeat(100_000) });
  const bodies = new BodyReader(large.length, 0);
  const requests = Array.from({ length: 16 }, () => context(large));
  await Promise.all(requests.map((request) => bodies.json(request)));
  const refused = { code: 'unavailable', message: expect.stringContaining('Too many large requests') as string };
  await expect(bodies.json(context(large))).rejects.toMatchObject(refused);
  // Others still have their share.
  const other = context(large, false, 'b');
  await bodies.json(other);
  bodies.leave(other);
  const [first, second] = requests as [Context, Context];
  for (const leave of [() => bodies.leave(first), () => second.res.emit('close')]) {
    for (let again = 0; again < 2; again++) leave();
    await expect(bodies.json(context(large))).resolves.toEqual(JSON.parse(large));
    await expect(bodies.json(context(large))).rejects.toMatchObject(refused);
  }
});
