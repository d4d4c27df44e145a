/** Many small requests of one entity beside those of another: what asks the database, and lists of very many models. */
import { setImmediate } from 'node:timers/promises';
import type { Context } from 'koa';
import { expect, test } from 'vitest';
import { ROUTES } from '../../../src/api/app.ts';
import { ClientGoneError } from '../../../src/api/errors.ts';
import { BodyReader } from '../../../src/api/middleware/body.ts';
import { entityTurns } from '../../../src/api/middleware/entity-turns.ts';
import type { RouteDeps } from '../../../src/api/routes/context.ts';
import { models } from '../../../src/api/routes/models.ts';

const AT_ONCE = 8;

function contextOf(entity: string, left = false): Context {
  const res = { closed: left, destroyed: false };
  return { state: { caller: { entity } }, res, path: '/v1/models', headers: {} } as unknown as Context;
}

/** Requests that end when they are told to. */
function requests() {
  const turn = entityTurns();
  const begun: string[] = [];
  const end = new Map<string, (error?: Error) => void>();
  const send = (name: string, left = false): Promise<unknown> =>
    turn(contextOf(name.slice(0, 1), left), () => {
      begun.push(name);
      return new Promise((resolve, reject) => end.set(name, (error) => (error ? reject(error) : resolve(undefined))));
    });
  return { begun, end, send };
}

test('so many of an entity are at work at once, however they end; others do not wait for them', async () => {
  const { begun, end, send } = requests();
  const names = Array.from({ length: AT_ONCE + 3 }, (_, at) => `a${at}`);
  const sent = names.map((name) => send(name));
  await setImmediate();
  expect(begun).toEqual(names.slice(0, AT_ONCE));
  const other = send('b0');
  expect(begun.at(-1)).toBe('b0');
  const fails = expect(sent[1]).rejects.toThrow('no');
  end.get('a0')?.();
  end.get('a1')?.(new Error('no'));
  await fails;
  await setImmediate();
  expect(begun.slice(-2)).toEqual(names.slice(AT_ONCE, AT_ONCE + 2));
  for (const name of ['a2', 'b0']) end.get(name)?.();
  await setImmediate();
  for (const name of begun) end.get(name)?.();
  await Promise.all([...sent.filter((_, at) => at !== 1), other]);
  expect(begun).toHaveLength(names.length + 1);
  // All turns are there again.
  const again = names.slice(0, AT_ONCE).map((name) => send(name));
  expect(begun.slice(-AT_ONCE)).toEqual(names.slice(0, AT_ONCE));
  for (const name of begun) end.get(name)?.();
  await Promise.all(again);
});

test('a request whose client has left while it waited is not worked on, and hands its turn on', async () => {
  const { begun, end, send } = requests();
  const names = Array.from({ length: AT_ONCE }, (_, at) => `a${at}`);
  const sent = names.map((name) => send(name));
  const gone = expect(send('a8', true)).rejects.toThrow(ClientGoneError);
  const last = send('a9');
  end.get('a0')?.();
  await gone;
  await setImmediate();
  expect(begun.slice(AT_ONCE)).toEqual(['a9']);
  for (const name of begun) end.get(name)?.();
  await Promise.all([...sent, last]);
});

test('every route of the database has turns but those whose work may take long, which have bounds of their own', () => {
  const without = ROUTES.filter(({ path, turns }) => /^\/v1\/(preview|responses\/:id)/.test(path) && !turns);
  expect(without.map(({ method, path }) => `${method} ${path}`)).toEqual([
    'POST /v1/preview/models/:model_id/log',
    'POST /v1/preview/training-jobs',
    'POST /v1/preview/sft-training-jobs',
    'PUT /v1/preview/artifacts/:artifact_id/files/:file',
    'GET /v1/preview/base-models',
  ]);
});

test('lists of very many models are written one at a time, entities in turn, others in between', async () => {
  const LISTED = Array.from({ length: 1000 }, (_, at) => ({ name: `m${at}`, root: 'r', created: 1 }));
  const deps = {
    bodies: new BodyReader(1024),
    models: { list: () => Promise.resolve(LISTED) },
    model: { names: ['base'], root: 'r', created: 1 },
    sessions: { maxModelLen: 128 },
  } as unknown as RouteDeps;
  const list = models(deps);
  const order: string[] = [];
  const ask = async (name: string) => {
    const ctx = contextOf(name.slice(0, 1));
    await list(ctx, () => Promise.resolve());
    expect((JSON.parse(ctx.body as string) as { data: unknown[] }).data).toHaveLength(1001);
    order.push(name);
  };
  const asked = ['a0', 'a1', 'a2', 'a3', 'b0'].map(ask);
  await setImmediate();
  order.push('others');
  await Promise.all(asked);
  expect(order).toEqual(['a0', 'others', 'a1', 'b0', 'a2', 'a3']);
});
