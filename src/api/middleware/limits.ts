/** Limits that Node's HTTP parser leaves to us, and the answer while shutting down. */
import type { ServerResponse } from 'node:http';
import type { Middleware } from 'koa';
import { ApiError } from '../errors.ts';

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

/**
 * A reader that takes nothing of a written answer for so long is cut, or it would hold the answer in memory for ever. Streams of events, which
 * may be silent for long, have bounds of their own.
 */
export function cutStalledReaders(idleMs: number): Middleware {
  return async (ctx, next) => {
    await next();
    if (ctx.respond !== false) watchReader(ctx.res, idleMs);
  };
}

/** Not by the socket's own time-out, which starts anew with whatever the reader sends. */
function watchReader(response: ServerResponse, idleMs: number): void {
  let before = -1;
  const timer = setInterval(() => {
    const { socket } = response;
    const taken = socket === null ? 0 : socket.bytesWritten - socket.writableLength;
    if (taken === before) response.destroy();
    before = taken;
  }, idleMs).unref();
  response.once('close', () => clearInterval(timer));
}

/** While draining, connections close after their answer. */
export function closeWhenDraining(draining: () => boolean): Middleware {
  return async (ctx, next) => {
    if (draining()) ctx.set('Connection', 'close');
    await next();
    if (draining() && !ctx.res.headersSent) ctx.set('Connection', 'close');
  };
}
