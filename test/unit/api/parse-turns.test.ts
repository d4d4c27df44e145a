/** Large bodies: one at a time, entities in turn, others in between. */
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
function context(text: string, gone = false): Context {
  const req = Object.assign(Readable.from([Buffer.from(text)]), { headers: {}, complete: true });
  const get = (name: string) => (name === 'content-type' ? 'application/json' : '');
  const res = { closed: gone, destroyed: gone };
  return { req, res, get, state: { caller: { entity: 'a' } } } as unknown as Context;
}

test('a large body whose client has left is not parsed; what was held is free again', async () => {
  const large = JSON.stringify({ text: 'x'.repeat(100_000) });
  const bodies = new BodyReader(large.length);
  for (let round = 0; round < 3; round++) {
    const read = Array.from({ length: 15 }, (_, at) => bodies.json(context(large, at % 2 === 0)));
    const results = await Promise.allSettled([...read, bodies.json(context('{"small":1}'))]);
    for (const [at, result] of results.entries()) {
      if (at % 2 === 0) expect(result).toMatchObject({ reason: expect.any(ClientGoneError) as Error });
      else expect(result.status).toBe('fulfilled');
    }
  }
});
