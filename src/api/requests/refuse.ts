/** Refusals of fields, by what is wrong with them. */
import { SessionError } from '../../control/sessions/session.ts';
import { echo } from '../../schemas/validator.ts';
import { ApiError } from '../errors.ts';

export function refuse(message: string, param: string): never {
  throw new ApiError('invalid_parameter', message, param);
}

/** `at`: the place in the body, which the message begins with. */
export function refuseType(value: unknown, wanted: string, at: string): never {
  const message =
    value === undefined ? `${at}: Field required (missing)` : `${at}: Input should be ${wanted}, got ${echo(value)}.`;
  throw new ApiError('invalid_body', message, at);
}

/** A refusal of what is shared with chats, in an interface's own words. */
export function reworded(error: ApiError | SessionError, message: string, param: string | null): Error {
  if (error instanceof SessionError) return new SessionError(error.code, message, param, error.retryAfterSeconds);
  return new ApiError(error.code, message, param, error.retryAfterSeconds);
}
