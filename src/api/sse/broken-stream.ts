import type { Logger } from 'pino';
import { toApiError } from '../errors.ts';

/** Draining is no fault; what ended an engine is logged where it ended. */
export function logBrokenStream(log: Logger, error: unknown): void {
  const { code, message } = toApiError(error);
  if (code === 'unavailable') log.info({ reason: message }, 'stream ended');
  else log.error({ err: error }, 'stream failed');
}
