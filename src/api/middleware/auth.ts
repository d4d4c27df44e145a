/**
 * `Authorization: Bearer` on every path but the health checks, known or unknown, whatever the method; for clients of
 * the Messages API `x-api-key` too.
 */
import type { Context, Middleware } from 'koa';
import type { Caller, KeyDirectory } from '../deps.ts';
import { ApiError } from '../errors.ts';
import { takesApiKeyHeader } from '../messages-clients.ts';

/** Compared with the raw path: an encoded or doubled slash makes another path, which needs a key. */
export const OPEN_PATHS: ReadonlySet<string> = new Set(['/health', '/v1/health', '/ready', '/ping']);

/** Longer headers cannot be keys of ours and are not hashed. */
const MAX_TOKEN_LENGTH = 1024;

interface AuthState {
  caller: Caller;
}

/** Whose request it is. */
export function entityOf(ctx: Context): string {
  return (ctx.state as AuthState).caller.entity;
}

export function authenticate(keys: KeyDirectory): Middleware {
  return async (ctx, next) => {
    if (OPEN_PATHS.has(ctx.path)) return next();
    const takesHeader = takesApiKeyHeader(ctx.path);
    const caller =
      findCaller(ctx.get('authorization'), keys) ?? (takesHeader ? findKey(ctx.get('x-api-key').trim(), keys) : null);
    if (caller === null) {
      const headers = `${takesHeader ? '`x-api-key: <key>` or ' : ''}\`Authorization: Bearer <key>\``;
      throw new ApiError('unauthorized', `Give a valid API key in the header ${headers}.`);
    }
    (ctx.state as AuthState).caller = caller;
    return next();
  };
}

function findCaller(header: string, keys: KeyDirectory): Caller | null {
  const match = /^bearer +([^\s]+)\s*$/i.exec(header.slice(0, MAX_TOKEN_LENGTH + 16));
  return findKey(match?.[1] ?? '', keys);
}

function findKey(token: string, keys: KeyDirectory): Caller | null {
  return token === '' || token.length > MAX_TOKEN_LENGTH ? null : keys.find(token);
}
