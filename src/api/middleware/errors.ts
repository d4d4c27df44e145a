/** Outermost: every error leaves as the one error object of its interface, and nothing of the inside leaves with it. */
import type { Middleware } from 'koa';
import type { Logger } from 'pino';
import { ApiError, ClientGoneError, ERRORS, toApiError } from '../errors.ts';
import { isOfMessages } from '../messages-clients.ts';
import { messagesError } from '../responses/messages-error.ts';
import { messagesId } from './messages-ids.ts';

export function errorResponses(log: Logger): Middleware {
  return async (ctx, next) => {
    // A write that crosses the client's leaving fails on the response; without a listener that would end the process.
    ctx.res.on('error', (error) => log.debug({ err: error }, 'response broke'));
    try {
      await next();
    } catch (error) {
      if (error instanceof ClientGoneError) {
        // No one reads this; the status is for the log and the metrics.
        ctx.status = 499;
        ctx.respond = false;
        return;
      }
      const shown = toApiError(error);
      // Loading, draining and restarting are no faults, and probes ask every second; what ended an engine is logged where it ended.
      if (shown.code === 'unavailable') log.info({ path: ctx.path, reason: shown.message }, 'not available');
      else if (shown.status >= 500) log.error({ err: error, path: ctx.path }, 'request failed');
      sendError(ctx, shown);
    }
  };
}

function sendError(ctx: Parameters<Middleware>[0], error: ApiError): void {
  ctx.status = ERRORS[error.code].status;
  if (error.retryAfterSeconds !== null) ctx.set('Retry-After', String(error.retryAfterSeconds));
  if (error.code === 'unauthorized') ctx.set('WWW-Authenticate', 'Bearer');
  ctx.body = isOfMessages(ctx.path, ctx.headers) ? messagesError(error, messagesId(ctx)) : error.toBody();
}
