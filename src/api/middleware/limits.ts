/** Limits that Node's HTTP parser leaves to us, and the answer while shutting down. */
import { setImmediate } from 'node:timers/promises';
import type { Middleware } from 'koa';
import type { ApiDeps } from '../deps.ts';
import { ApiError } from '../errors.ts';
import { closeBehindAnswer, isLastOfConnection } from '../http-server.ts';
import { ReaderWatch } from '../reader-watch.ts';

const MAX_HEADERS = 128;

export function limitHeaders(): Middleware {
  return async (ctx, next) => {
    if (ctx.req.rawHeaders.length / 2 > MAX_HEADERS) {
      throw new ApiError('headers_too_large', `A request may have at most ${MAX_HEADERS} headers.`);
    }
    if (ctx.req.httpVersion === '1.1' && ctx.req.headers.host === undefined) {
      throw new ApiError('invalid_body', 'An HTTP/1.1 request needs a Host header.');
    }
    return next();
  };
}

/** A reader that takes nothing of a written answer, or of what is left of a stream that has ended, for so long is cut. */
export function cutStalledReaders(idleMs: number): Middleware {
  const readers = new ReaderWatch(idleMs);
  return async (ctx, next) => {
    await next();
    readers.watch(ctx.res);
  };
}

/** An answer that does not wait for the rest of its request, such as a refusal by its headers, ends the connection. */
export function closeBehindUnread(): Middleware {
  return async (ctx, next) => {
    await next();
    if (ctx.req.complete || ctx.res.headersSent) return;
    // What came together with its head may not have been parsed yet.
    await setImmediate();
    if (!ctx.req.complete && !ctx.res.headersSent) closeBehindAnswer(ctx.res);
  };
}

/** While draining, connections close after their last answer. */
export function closeWhenDraining(draining: () => boolean): Middleware {
  return async (ctx, next) => {
    if (draining()) ctx.set('Connection', 'close');
    await next();
    if (draining() && !ctx.res.headersSent && isLastOfConnection(ctx.req)) ctx.set('Connection', 'close');
  };
}

/** Of what is begun; what has begun goes on. */
export function refuseWhileDraining(deps: Pick<ApiDeps, 'draining'>): void {
  if (deps.draining()) throw new ApiError('unavailable', 'The server is shutting down.', null, 1);
}
