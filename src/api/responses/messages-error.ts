/** Errors as clients of the Messages API know them. */
import type { MessagesErrorBody } from '../../schemas/message-object.ts';
import type { ApiError } from '../errors.ts';

const TYPES: ReadonlyMap<number, string> = new Map([
  [401, 'authentication_error'],
  [403, 'permission_error'],
  [404, 'not_found_error'],
  [413, 'request_too_large'],
  [429, 'rate_limit_error'],
  [503, 'overloaded_error'],
]);

export function messagesError(error: ApiError, requestId: string | null): MessagesErrorBody {
  const { status, message, param } = error;
  const type = TYPES.get(status) ?? (status >= 500 ? 'api_error' : 'invalid_request_error');
  // The shape has no place for it.
  const named = param === null || message.includes(param) ? message : `${param}: ${message}`;
  // Anthropic's libraries know by it to send the whole conversation without `thread`, which their tool runners ask for first.
  const unthreaded = error.code === 'not_built' && param === 'thread';
  const details = unthreaded ? { details: { error_code: 'thread_unsupported_request' } } : {};
  return { type: 'error', error: { type, message: named, ...details }, request_id: requestId };
}
