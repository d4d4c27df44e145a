/** Answers of the Messages API carry an id of their request, refusals too: its clients log it. */
import { randomBytes } from 'node:crypto';
import type { Context, Middleware } from 'koa';
import { isMessagesPath } from '../responses/messages-error.ts';

const HEADER = 'Request-Id';

export function messagesIds(): Middleware {
  return (ctx, next) => {
    if (isMessagesPath(ctx.path)) ctx.set(HEADER, `req_${randomBytes(12).toString('hex')}`);
    return next();
  };
}

export function messagesId(ctx: Context): string {
  return ctx.response.get(HEADER);
}
