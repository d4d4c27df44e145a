/** `Authorization: Bearer` on every path but the health checks, known or unknown, whatever the method. */
import type { Context, Middleware } from 'koa';
import type { Caller, KeyDirectory } from '../deps.ts';
import { ApiError } from '../errors.ts';

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
    const caller = findCaller(ctx.get('authorization'), keys);
    if (caller === null) {
      throw new ApiError('unauthorized', 'Give a valid API key in the header `Authorization: Bearer <key>`.');
    }
    (ctx.state as AuthState).caller = caller;
    return next();
  };
}

function findCaller(header: string, keys: KeyDirectory): Caller | null {
  const match = /^bearer +([^\s]+)\s*$/i.exec(header.slice(0, MAX_TOKEN_LENGTH + 16));
  const token = match?.[1];
  if (token === undefined || token.length > MAX_TOKEN_LENGTH) return null;
  return keys.find(token);
}
