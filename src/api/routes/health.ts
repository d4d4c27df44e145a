import type { Middleware } from 'koa';
import type { ApiDeps } from '../deps.ts';
import { ApiError } from '../errors.ts';

/** Alive: 200 with an empty body while the engine lives or is being restarted. */
export function health(deps: ApiDeps): Middleware {
  return (ctx) => {
    requireEngine(deps);
    ctx.status = 200;
    ctx.body = '';
  };
}

/** The same for clients of the training endpoints, who read JSON. */
export function healthAsJson(deps: ApiDeps): Middleware {
  return (ctx) => {
    requireEngine(deps);
    ctx.body = { status: 'ok' };
  };
}

function requireEngine(deps: ApiDeps): void {
  if (deps.engine.state === 'dead') throw new ApiError('unavailable', 'The engine is not running.', null, 5);
}
