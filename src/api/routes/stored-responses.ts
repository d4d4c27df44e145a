/** Responses that are kept: reading one, what it was asked with, deleting it. */
import type { Context, Middleware } from 'koa';
import type { StoredResponse } from '../../control/stored-responses.ts';
import { echo } from '../../schemas/validator.ts';
import { entityOf } from '../middleware/auth.ts';
import { refuse } from '../requests/refuse.ts';
import { notFound } from '../requests/responses-history.ts';
import type { RouteDeps } from './context.ts';

/** Of a text in memory, at most. */
const CHAR_BYTES = 2;
const DEFAULT_LIMIT = 20;
const MAX_LIMIT = 100;

/** The texts that are stored are JSON already: nothing of them is parsed. */
export function storedResponse(deps: RouteDeps): Middleware {
  return async (ctx) => {
    refuseQueries(ctx);
    const { head, output } = await find(ctx, deps);
    ctx.body = `${head.slice(0, -1)},"output":${output}}`;
    ctx.type = 'json';
  };
}

export function deleteResponse(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const id = idOf(ctx);
    if (!(await deps.responses.delete(entityOf(ctx), id))) throw notFound(id, 'response_id');
    ctx.body = { id, object: 'response', deleted: true };
  };
}

/** The items that the request brought itself, the newest first unless asked otherwise. */
export function inputItems(deps: RouteDeps): Middleware {
  return async (ctx) => {
    refuseQueries(ctx);
    const { limit, order, after } = pageOf(ctx);
    const { input } = await find(ctx, deps);
    const items = await deps.bodies.inTurn(entityOf(ctx), input.length, () => JSON.parse(input) as { id: string }[]);
    if (order === 'desc') items.reverse();
    const from = after === null ? 0 : items.findIndex(({ id }) => id === after) + 1;
    if (after !== null && from === 0) refuse('There is no such item.', 'after');
    const data = items.slice(from, from + limit);
    ctx.body = {
      object: 'list',
      data,
      first_id: data[0]?.id ?? null,
      last_id: data.at(-1)?.id ?? null,
      has_more: from + limit < items.length,
    };
  };
}

async function find(ctx: Context, deps: RouteDeps): Promise<StoredResponse> {
  const id = idOf(ctx);
  const room = deps.answerRoom.open(entityOf(ctx), ctx.res);
  const found = await deps.responses.find(entityOf(ctx), id, (bytes) => room.reread(CHAR_BYTES * bytes));
  if (found === null) throw notFound(id, 'response_id');
  return found;
}

function idOf(ctx: Context): string {
  return String((ctx.params as Record<string, unknown>)['id']);
}

function refuseQueries({ query }: Context): void {
  if (query['stream'] === 'true') refuse('A stored response is not streamed again.', 'stream');
  if (Object.keys(query).some((name) => /^include(\[|$)/.test(name))) {
    refuse('What a response includes is decided when it is made.', 'include');
  }
}

function pageOf({ query }: Context): { limit: number; order: 'asc' | 'desc'; after: string | null } {
  const { limit = String(DEFAULT_LIMIT), order = 'desc', after = null } = query;
  const count = typeof limit === 'string' && /^\d{1,4}$/.test(limit) ? Number(limit) : 0;
  if (count < 1 || count > MAX_LIMIT) refuse(`limit must be between 1 and ${MAX_LIMIT}, got ${echo(limit)}.`, 'limit');
  if (order !== 'asc' && order !== 'desc') refuse(`order must be "asc" or "desc", got ${echo(order)}.`, 'order');
  if (Array.isArray(after)) refuse('after must be one id.', 'after');
  return { limit: count, order, after };
}
