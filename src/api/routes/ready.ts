import type { Middleware } from 'koa';
import type { ApiDeps } from '../deps.ts';
import { ApiError } from '../errors.ts';

/** Whether a request would be served now. */
export function ready(deps: ApiDeps): Middleware {
  return (ctx) => {
    const state = deps.draining() ? 'draining' : deps.engine.state;
    if (state !== 'ready') throw new ApiError('unavailable', `The engine is ${state}.`, null, 1);
    ctx.body = { status: 'ready' };
  };
}
