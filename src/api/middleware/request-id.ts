/** The id of a request: X-Request-Id, else the body's request_id, else random. It goes into response ids, logs and headers. */
import { randomBytes } from 'node:crypto';
import type { Context, Middleware } from 'koa';
import { ApiError } from '../errors.ts';

/** Printable ASCII: no line break can reach a header or a log line. */
const ALLOWED = /^[\x20-\x7e]{1,256}$/;

export interface RequestIdState {
  requestIdHeader: string | null;
}

/** Every answer carries the id that its request came with, refusals too; a random one where none can be repeated. */
export function echoRequestIds(): Middleware {
  return async (ctx, next) => {
    const header = ctx.get('x-request-id');
    ctx.set('X-Request-Id', ALLOWED.test(header) ? header : newRequestId());
    return next();
  };
}

export function requestIds(): Middleware {
  return async (ctx, next) => {
    const header = ctx.get('x-request-id');
    if (header !== '' && !ALLOWED.test(header)) {
      throw new ApiError(
        'invalid_parameter',
        'X-Request-Id must be 1 to 256 printable ASCII characters.',
        'X-Request-Id',
      );
    }
    (ctx.state as RequestIdState).requestIdHeader = header === '' ? null : header;
    return next();
  };
}

export function requestId(ctx: Context, fromBody: string | undefined): string {
  if (fromBody !== undefined && !ALLOWED.test(fromBody)) {
    throw new ApiError('invalid_parameter', 'request_id must be 1 to 256 printable ASCII characters.', 'request_id');
  }
  return (ctx.state as RequestIdState).requestIdHeader ?? fromBody ?? newRequestId();
}

/** 32 hex digits. */
function newRequestId(): string {
  return randomBytes(16).toString('hex');
}
