import type { Middleware } from 'koa';
import type { RouteDeps } from '../context.ts';

/** Every part that a job needs, each tried: 503 if one of them fails. */
export function systemCheck(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const checks = [
      { name: 'engine', ok: deps.engine.state === 'ready', message: `The engine is ${deps.engine.state}.` },
      ...(await deps.training.check()),
    ];
    const ok = checks.every((check) => check.ok);
    ctx.status = ok ? 200 : 503;
    if (!ok) ctx.set('Retry-After', '1');
    ctx.body = { status: ok ? 'ok' : 'failed', checks };
  };
}
