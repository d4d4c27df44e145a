import type { Middleware } from 'koa';
import type { ApiDeps } from '../deps.ts';

export function version(deps: ApiDeps): Middleware {
  return (ctx) => {
    ctx.body = { version: deps.version };
  };
}
