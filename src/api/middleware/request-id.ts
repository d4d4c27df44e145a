/** The id of a request: X-Request-Id, else the body's request_id, else random. It goes into response ids, logs and headers. */
import { randomBytes } from 'node:crypto';
import type { Context, Middleware } from 'koa';
import { ApiError } from '../errors.ts';

/** Printable ASCII: no line break can reach a header or a log line. */
const ALLOWED = /^[\x20-\x7e]{1,256}$/;
const HEADER = 'X-Request-Id';

export interface RequestIdState {
  requestIdHeader: string | null;
}

/** Every answer carries the id of its request, refusals too: that which it came with, or a random one, which is then its answer's. */
export function echoRequestIds(): Middleware {
  return async (ctx, next) => {
    const header = ctx.get(HEADER);
    ctx.set(HEADER, ALLOWED.test(header) ? header : newRequestId());
    return next();
  };
}

export function requestIds(): Middleware {
  return async (ctx, next) => {
    const header = ctx.get(HEADER);
    if (header !== '' && !ALLOWED.test(header)) {
      throw new ApiError('invalid_parameter', `${HEADER} must be 1 to 256 printable ASCII characters.`, HEADER);
    }
    (ctx.state as RequestIdState).requestIdHeader = header === '' ? null : header;
    return next();
  };
}

export function requestId(ctx: Context, fromBody: string | undefined): string {
  if (fromBody !== undefined && !ALLOWED.test(fromBody)) {
    throw new ApiError('invalid_parameter', 'request_id must be 1 to 256 printable ASCII characters.', 'request_id');
  }
  const echoes = ctx.res.hasHeader(HEADER);
  const made = echoes ? ctx.response.get(HEADER) : newRequestId();
  const id = (ctx.state as RequestIdState).requestIdHeader ?? fromBody ?? made;
  if (echoes) ctx.set(HEADER, id);
  return id;
}

/** 32 hex digits. */
function newRequestId(): string {
  return randomBytes(16).toString('hex');
}
