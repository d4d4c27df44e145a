import type { Logger } from 'pino';
import { toApiError, type ApiError } from '../errors.ts';

/** What a stream that has begun tells of its failure. As for whole answers, a server that shuts down is no fault of it. */
export function streamFailure(error: unknown, log: Logger): ApiError {
  const shown = toApiError(error);
  if (shown.code === 'unavailable') log.info({ reason: shown.message }, 'stream cut');
  else log.error({ err: error }, 'stream failed');
  return shown;
}
