import type { Middleware } from 'koa';
import type { ApiDeps } from '../deps.ts';

export function metrics(deps: ApiDeps): Middleware {
  return async (ctx) => {
    ctx.body = await deps.metrics.render();
    ctx.set('Content-Type', deps.metrics.contentType);
  };
}
