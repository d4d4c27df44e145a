/** What a training service refuses; the HTTP layer gives each its status. Whose fault an error is. */
import { EngineUnavailableError } from '../engine/client.ts';
import { SessionError } from '../sessions/session.ts';

export type ServiceErrorCode =
  | 'not_found'
  | 'forbidden'
  | 'conflict'
  | 'too_large'
  | 'queue_full'
  | 'quota_exceeded'
  | 'storage_full'
  | 'file_lost'
  | 'unavailable';

export class ServiceError extends Error {
  readonly code: ServiceErrorCode;
  readonly param: string | null;
  /** With code queue_full: when to try again; null where nothing is known. */
  readonly retryAfterSeconds: number | null;
  constructor(
    code: ServiceErrorCode,
    message: string,
    param: string | null = null,
    retryAfterSeconds: number | null = null,
    options: ErrorOptions = {},
  ) {
    super(message, options);
    this.name = 'ServiceError';
    this.code = code;
    this.param = param;
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

type Resource = 'model' | 'checkpoint' | 'training job' | 'artifact' | 'run' | 'log';

/** One text for what never was, what has gone and what belongs to others. */
export function notFound(what: Resource | 'file of the artifact' | 'file of the checkpoint'): ServiceError {
  return new ServiceError('not_found', `There is no such ${what}.`);
}

const FULL = new Set(['ENOSPC', 'EDQUOT', 'SQLITE_FULL']);

/** Said by the file system, or by SQLite. */
export function isDiskFull(error: unknown): boolean {
  return FULL.has(codeOf(error));
}

/** For now no file can be opened, or memory be had; nothing is wrong with what lies on the disk. */
const SHORT = new Set(['EMFILE', 'ENFILE', 'ENOMEM', 'EAGAIN']);
/** A disk that fails or cannot be written for now, as one on the network may. */
const FAILING = new Set(['EIO', 'EROFS', 'EBUSY', 'ETIMEDOUT', 'ESTALE']);

export function isShortage(error: unknown): boolean {
  return SHORT.has(codeOf(error));
}

/** What may be well again when the work is done once more. SQLite's codes say more behind these names. */
export function mayPass(error: unknown): boolean {
  const code = codeOf(error);
  return (
    SHORT.has(code) || FAILING.has(code) || isDiskFull(error) || /^SQLITE_(?:IOERR|BUSY|CANTOPEN|NOMEM)/.test(code)
  );
}

/** It could not be read, which says nothing about the file; that the disk fails at it (EIO) does. */
export function mayBeReadLater(error: unknown): boolean {
  return mayPass(error) && codeOf(error) !== 'EIO';
}

/** What was stored is not there any more, or something else is; Z_...: says zlib, by whose checksums it is known. */
export function isDamage(error: unknown): boolean {
  return /^(?:ENOENT$|Z_)/.test(codeOf(error));
}

/** A part of the server has ended, and comes back with the next start at the latest: whoever needs it waits. */
export function isUnavailable(error: unknown): boolean {
  return error instanceof EngineUnavailableError || (error instanceof SessionError && error.code === 'unavailable');
}

function codeOf(error: unknown): string {
  const { code } = (error ?? {}) as { code?: unknown };
  return typeof code === 'string' ? code : '';
}

/** Errors of a full disk in words for the client; others as they are. */
export function storageError(error: unknown): unknown {
  return isDiskFull(error) ? new ServiceError('storage_full', 'The server has no storage left.') : error;
}
