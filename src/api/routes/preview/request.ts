/** Reading requests of the training endpoints: JSON bodies, page queries, path ids. Every fault is a 422 that says where. */
import type { Context } from 'koa';
import { DEFAULT_PAGE_LIMIT, MAX_PAGE_LIMIT, type PageQuery } from '../../../schemas/preview/page.ts';
import { canonicalUuid } from '../../../schemas/preview/uuid.ts';
import { shorten } from '../../../schemas/shorten.ts';
import { invalid } from '../../../schemas/validation-error.ts';
import { ApiError } from '../../errors.ts';
import { isJson } from '../../middleware/content.ts';
import type { RouteDeps } from '../context.ts';

/** A small JSON body. */
export async function readJson(ctx: Context, deps: RouteDeps): Promise<unknown> {
  try {
    return await deps.bodies.json(ctx);
  } catch (error) {
    if (error instanceof ApiError && error.code === 'invalid_body')
      throw invalid(['body'], error.message, 'json_invalid');
    throw error;
  }
}

/** Of bodies that are streamed. */
export function requireJson(ctx: Context): void {
  if (!isJson(ctx)) throw invalid(['header', 'Content-Type'], 'The body must be sent as application/json.');
}

export function pathParameter(ctx: Context, name: string): string {
  return (ctx['params'] as Record<string, string | undefined>)[name] ?? '';
}

/** An id of the path. */
export function pathId(ctx: Context, name: string): string {
  return canonicalUuid(pathParameter(ctx, name));
}

/** `more`: what the list may be asked besides where to begin and how long to be. Nothing else is: a filter that is none would show all. */
export function readPage(ctx: Context, more: readonly string[] = []): PageQuery {
  const known = ['after', 'limit', ...more];
  const extra = Object.keys(ctx.query).find((name) => !known.includes(name));
  if (extra !== undefined) {
    const names = known.map((name) => `'${name}'`).join(', ');
    throw invalid(
      ['query', shorten(extra, 64)],
      `Extra inputs are not permitted: this list takes ${names}`,
      'extra_forbidden',
    );
  }
  return { after: canonicalUuid(single(ctx, 'after') ?? '') || null, limit: readLimit(ctx), order: readOrder(ctx) };
}

/** Of several the last one counts. */
export function single(ctx: Context, name: string): string | undefined {
  const value = ctx.query[name];
  return Array.isArray(value) ? value.at(-1) : value;
}

function readLimit(ctx: Context): number {
  const text = single(ctx, 'limit');
  if (text === undefined) return DEFAULT_PAGE_LIMIT;
  const loc = ['query', 'limit'];
  if (!/^[+-]?\d{1,15}$/.test(text)) {
    throw invalid(loc, 'Input should be a valid integer, unable to parse string as an integer', 'int_parsing');
  }
  const limit = Number(text);
  if (limit < 1) throw invalid(loc, 'Input should be greater than or equal to 1', 'greater_than_equal');
  if (limit > MAX_PAGE_LIMIT) {
    throw invalid(loc, `Input should be less than or equal to ${MAX_PAGE_LIMIT}`, 'less_than_equal');
  }
  return limit;
}

function readOrder(ctx: Context): 'asc' | 'desc' {
  const order = single(ctx, 'order') ?? 'asc';
  if (order === 'asc' || order === 'desc') return order;
  throw invalid(['query', 'order'], "Input should be 'asc' or 'desc'", 'literal_error');
}
