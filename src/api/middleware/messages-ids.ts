/** Answers to clients of the Messages API carry an id of their request, refusals too: they log it. */
import { randomBytes } from 'node:crypto';
import type { Context, Middleware } from 'koa';
import { isOfMessages } from '../messages-clients.ts';

const HEADER = 'Request-Id';

export function messagesIds(): Middleware {
  return (ctx, next) => {
    if (isOfMessages(ctx.path, ctx.headers)) ctx.set(HEADER, `req_${randomBytes(12).toString('hex')}`);
    return next();
  };
}

export function messagesId(ctx: Context): string {
  return ctx.response.get(HEADER);
}
