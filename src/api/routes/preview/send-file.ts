import type { Context } from 'koa';

export function sendFile(ctx: Context, { bytes, content }: { bytes: number; content: NodeJS.ReadableStream }): void {
  // Never shown by a browser: the bytes are a client's.
  ctx.set('Content-Disposition', 'attachment');
  ctx.set('X-Content-Type-Options', 'nosniff');
  ctx.type = 'application/octet-stream';
  ctx.length = bytes;
  ctx.body = content;
}
