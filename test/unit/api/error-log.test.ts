import { EventEmitter } from 'node:events';
import type { Context } from 'koa';
import { pino } from 'pino';
import { expect, test } from 'vitest';
import { ApiError } from '../../../src/api/errors.ts';
import { errorResponses } from '../../../src/api/middleware/errors.ts';

async function logOf(error: Error): Promise<Record<string, unknown>[]> {
  const lines: Record<string, unknown>[] = [];
  const log = pino({ level: 'info' }, { write: (line) => lines.push(JSON.parse(line) as Record<string, unknown>) });
  const ctx = { res: new EventEmitter(), path: '/ready', set: () => undefined } as unknown as Context;
  await errorResponses(log)(ctx as never, () => Promise.reject(error));
  return lines;
}

test('a probe of a server that loads is no fault in the log, a fault is one with its cause', async () => {
  const [waiting] = await logOf(new ApiError('unavailable', 'The engine is starting.', null, 1));
  expect(waiting).toMatchObject({ level: 30, path: '/ready', reason: 'The engine is starting.' });
  expect(waiting).not.toHaveProperty('err');
  const [fault] = await logOf(new Error('a bug'));
  expect(fault).toMatchObject({ level: 50, path: '/ready', err: { message: 'a bug' } });
  expect(await logOf(new ApiError('not_found', 'Not Found'))).toEqual([]);
});
