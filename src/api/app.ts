/** The Koa application: middleware in order, one route per endpoint. */
import { getHeapStatistics } from 'node:v8';
import Router from '@koa/router';
import Koa, { type Middleware } from 'koa';
import type { ApiDeps } from './deps.ts';
import { ApiError } from './errors.ts';
import { AnswerRoom } from './generation/answer-room.ts';
import { authenticate } from './middleware/auth.ts';
import { BodyReader } from './middleware/body.ts';
import { entityTurns } from './middleware/entity-turns.ts';
import { errorResponses } from './middleware/errors.ts';
import { closeBehindUnread, closeWhenDraining, cutStalledReaders, limitHeaders } from './middleware/limits.ts';
import { messagesIds } from './middleware/messages-ids.ts';
import { refuseTraining } from './middleware/no-training.ts';
import { allowOrigins } from './middleware/origins.ts';
import { echoRequestIds, requestIds } from './middleware/request-id.ts';
import { chatCompletions } from './routes/chat-completions.ts';
import { completions } from './routes/completions.ts';
import type { RouteDeps } from './routes/context.ts';
import { detokenize } from './routes/detokenize.ts';
import { health, healthAsJson } from './routes/health.ts';
import { loadLoraAdapter, unloadLoraAdapter } from './routes/lora-adapters.ts';
import { countTokens, messages } from './routes/messages.ts';
import { metrics } from './routes/metrics.ts';
import { model, models } from './routes/models.ts';
import { responses, responsesInputTokens } from './routes/responses.ts';
import { ready } from './routes/ready.ts';
import { deleteResponse, inputItems, storedResponse } from './routes/stored-responses.ts';
import { tokenize } from './routes/tokenize.ts';
import { PREVIEW_ROUTES } from './routes/preview/routes.ts';
import { version } from './routes/version.ts';
import { RouteTable, type Route } from './route-table.ts';
import { StreamBuffers } from './sse/stream-buffers.ts';

/** Every endpoint. The authentication scan test walks this list. */
export const ROUTES: readonly Route[] = [
  { method: 'POST', path: '/v1/chat/completions', handler: chatCompletions },
  { method: 'POST', path: '/v1/chat/completions/', handler: chatCompletions },
  { method: 'POST', path: '/v1/completions', handler: completions },
  { method: 'POST', path: '/v1/responses', handler: responses },
  { method: 'POST', path: '/v1/responses/', handler: responses },
  { method: 'POST', path: '/v1/responses/input_tokens', handler: responsesInputTokens },
  { method: 'GET', path: '/v1/responses/:id', handler: storedResponse, turns: true },
  { method: 'DELETE', path: '/v1/responses/:id', handler: deleteResponse, turns: true },
  { method: 'GET', path: '/v1/responses/:id/input_items', handler: inputItems, turns: true },
  { method: 'POST', path: '/v1/messages', handler: messages },
  { method: 'POST', path: '/v1/messages/count_tokens', handler: countTokens },
  { method: 'POST', path: '/tokenize', handler: tokenize },
  { method: 'POST', path: '/detokenize', handler: detokenize },
  { method: 'GET', path: '/v1/models', handler: models },
  { method: 'GET', path: '/v1/models/*model', handler: model },
  { method: 'POST', path: '/v1/load_lora_adapter', handler: loadLoraAdapter },
  { method: 'POST', path: '/v1/unload_lora_adapter', handler: unloadLoraAdapter },
  { method: 'GET', path: '/version', handler: version },
  { method: 'GET', path: '/metrics', handler: metrics },
  { method: 'GET', path: '/health', handler: health },
  { method: 'GET', path: '/v1/health', handler: healthAsJson },
  { method: 'GET', path: '/ready', handler: ready },
  { method: 'GET', path: '/ping', handler: health },
  ...PREVIEW_ROUTES,
];

const TABLE = new RouteTable(ROUTES);

/** Bodies that may take longer than the time for a request. */
export function isUpload(method: string, path: string): boolean {
  return TABLE.find(path).some((route) => route.method === method && route.upload === true);
}

/** A reader may rest for so long while something waits for it that is written to its end. */
const READER_IDLE_MS = 60_000;
/** Characters of a path that an error repeats. */
const MAX_SHOWN_PATH = 200;

export function createApp(deps: ApiDeps, readerIdleMs = READER_IDLE_MS): Koa {
  const app = new Koa();
  app.on('error', (error: unknown) => logUnexpected(deps, error));
  const { maxBodyBytes, maxStreamBufferBytes, maxAnswerBytes } = deps.settings;
  const router = makeRouter({
    ...deps,
    bodies: new BodyReader(maxBodyBytes),
    streamBuffers: new StreamBuffers(maxStreamBufferBytes),
    answerRoom: new AnswerRoom(maxAnswerBytes, getHeapStatistics().heap_size_limit),
  });
  app.use(cutStalledReaders(readerIdleMs));
  app.use(countRequests(deps));
  app.use(messagesIds());
  app.use(closeBehindUnread());
  app.use(errorResponses(deps.log));
  app.use(closeWhenDraining(deps.draining));
  app.use(limitHeaders());
  if (deps.settings.enableRequestIdHeaders) app.use(echoRequestIds());
  if (deps.settings.allowedOrigins.length > 0) app.use(allowOrigins(deps.settings.allowedOrigins));
  app.use(authenticate(deps.keys));
  app.use(requestIds());
  if (!deps.trains) app.use(refuseTraining(isRouted));
  app.use(router.routes());
  app.use(unmatched());
  return app;
}

function isRouted(method: string, path: string): boolean {
  return TABLE.find(path).some((route) => route.method === method);
}

/** Koa also tells of sockets that broke under an answer: clients leave, which is no error of ours. */
function logUnexpected(deps: ApiDeps, error: unknown): void {
  const { code } = error as { code?: unknown };
  const left = code === 'EPIPE' || code === 'ECONNRESET' || code === 'ERR_STREAM_PREMATURE_CLOSE';
  deps.log[left ? 'debug' : 'error']({ err: error }, left ? 'client left' : 'unexpected error');
}

function makeRouter(deps: RouteDeps): Router {
  // strict: a trailing slash is another path; sensitive: so is another case.
  const router = new Router({ strict: true, sensitive: true });
  const turn = entityTurns();
  for (const { method, path, handler, turns } of ROUTES)
    router.register(path, [method], turns ? [turn, handler(deps)] : [handler(deps)]);
  return router;
}

/** Known path with another method: 405; anything else: 404. Both come after authentication. */
function unmatched(): Middleware {
  return (ctx) => {
    const methods = TABLE.find(ctx.path).map((route) => route.method);
    if (methods.length === 0) throw new ApiError('not_found', notFound(ctx.path));
    ctx.set('Allow', methods.join(', '));
    throw new ApiError('method_not_allowed', 'Method Not Allowed');
  };
}

/** The usual mistake is a base URL without /v1, or with it twice. */
function notFound(path: string): string {
  const tail = path.replace(/^(\/v1)+(?=\/)/, '');
  const meant = [`/v1${tail}`, tail].find((candidate) => candidate !== path && TABLE.isFixed(candidate));
  const shown = path.slice(0, MAX_SHOWN_PATH);
  return meant === undefined
    ? `This server has no path ${shown}.`
    : `This server has no path ${shown}; it has ${meant}.`;
}

function countRequests(deps: ApiDeps): Middleware {
  const methods = new Set(['GET', 'POST', 'HEAD', 'OPTIONS', 'PUT', 'DELETE', 'PATCH']);
  return async (ctx, next) => {
    const started = performance.now();
    await next();
    const method = methods.has(ctx.method) ? ctx.method : 'other';
    const handler = TABLE.find(ctx.path)[0]?.path ?? 'none';
    deps.metrics.http(method, handler, ctx.status);
    deps.log.info(
      { method, path: handler, status: ctx.status, ms: Math.round(performance.now() - started) },
      'request',
    );
  };
}
