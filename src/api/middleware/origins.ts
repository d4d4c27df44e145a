/** Pages of other origins (browsers ask before they send a key): only those that the operator names. */
import type { Context, Middleware } from 'koa';

const METHODS = 'GET, POST, PUT, DELETE';
/** What a page may read besides the body. */
const READABLE = 'Request-Id, Retry-After, X-Request-Id, X-Tandem-Ignored-Fields';
/** For how long a browser need not ask again. */
const REMEMBERED_SECONDS = 600;
/** Header names with commas between them. */
const HEADER_NAMES = /^[\w!#$%&'*+.^`|~-]+(\s*,\s*[\w!#$%&'*+.^`|~-]+)*$/;

/** `origins`: `*` stands for all. Comes before the check of keys: a browser's question has none. */
export function allowOrigins(origins: readonly string[]): Middleware {
  const all = origins.includes('*');
  return async (ctx, next) => {
    const origin = ctx.get('origin');
    if (!all) ctx.vary('Origin');
    if (origin === '' || !(all || origins.includes(origin))) return next();
    ctx.set('Access-Control-Allow-Origin', all ? '*' : origin);
    ctx.set('Access-Control-Expose-Headers', READABLE);
    if (ctx.method !== 'OPTIONS' || ctx.get('access-control-request-method') === '') return next();
    answerQuestion(ctx);
  };
}

function answerQuestion(ctx: Context): void {
  ctx.set('Access-Control-Allow-Methods', METHODS);
  ctx.set('Access-Control-Max-Age', String(REMEMBERED_SECONDS));
  // By name: `*` would leave Authorization out.
  const asked = ctx.get('access-control-request-headers').trim();
  if (asked.length <= 1024 && HEADER_NAMES.test(asked)) ctx.set('Access-Control-Allow-Headers', asked);
  ctx.status = 204;
}
