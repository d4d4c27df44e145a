/** Errors across the border of a thread, where classes are lost. */
import { SessionError } from '../../sessions/session.ts';
import { TrainingFailedError, TrainingInputError } from '../errors.ts';
import type { CarriedError } from './protocol.ts';

export function carry(error: unknown): CarriedError {
  const { message, code } = error as { message?: unknown; code?: unknown };
  const text = String(message);
  if (error instanceof TrainingInputError) {
    // The constructor puts the field before the text.
    return { kind: 'input', field: error.field, message: text.slice(error.field.length + 2) };
  }
  if (error instanceof TrainingFailedError) return { kind: 'failed', message: text };
  if (error instanceof SessionError) return { kind: 'session', code: error.code, message: text, param: error.param };
  return { kind: 'other', message: text, code: typeof code === 'string' ? code : null };
}

export function uncarry(error: CarriedError): Error {
  if (error.kind === 'input') return new TrainingInputError(error.field, error.message);
  if (error.kind === 'failed') return new TrainingFailedError(error.message);
  if (error.kind === 'session') return new SessionError(error.code, error.message, error.param);
  return Object.assign(new Error(error.message), error.code === null ? {} : { code: error.code });
}
