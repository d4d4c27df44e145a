import type { Middleware } from 'koa';
import type { ApiDeps } from '../deps.ts';
import { ApiError } from '../errors.ts';

/** Alive: 200 with an empty body while the engine lives or is being restarted. */
export function health(deps: ApiDeps): Middleware {
  return (ctx) => {
    if (deps.engine.state === 'dead') throw new ApiError('unavailable', 'The engine is not running.', null, 5);
    ctx.status = 200;
    ctx.body = '';
  };
}
