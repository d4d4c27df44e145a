/** What the headers say of a body. */
import type { Context } from 'koa';
import { ApiError } from '../errors.ts';

export function isJson(ctx: Context): boolean {
  return ctx.get('content-type').split(';', 1)[0]?.trim().toLowerCase() === 'application/json';
}

export function refuseCompressed(ctx: Context): void {
  const encoding = ctx.get('content-encoding').trim().toLowerCase();
  if (encoding === '' || encoding === 'identity') return;
  throw new ApiError('unsupported_encoding', 'Content-Encoding is not supported; send the body uncompressed.');
}
