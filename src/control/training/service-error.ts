/** What a training service refuses; the HTTP layer gives each its status. */
export type ServiceErrorCode =
  | 'not_found'
  | 'forbidden'
  | 'conflict'
  | 'too_large'
  | 'queue_full'
  | 'quota_exceeded'
  | 'storage_full'
  | 'unavailable';

export class ServiceError extends Error {
  readonly code: ServiceErrorCode;
  readonly param: string | null;
  constructor(code: ServiceErrorCode, message: string, param: string | null = null) {
    super(message);
    this.name = 'ServiceError';
    this.code = code;
    this.param = param;
  }
}

/** One text for what never was, what has gone and what belongs to others. */
export function notFound(what: 'model' | 'training job' | 'artifact' | 'run' | 'log'): ServiceError {
  return new ServiceError('not_found', `There is no such ${what}.`);
}

const FULL = new Set(['ENOSPC', 'EDQUOT', 'SQLITE_FULL']);

/** Said by the file system, or by SQLite. */
export function isDiskFull(error: unknown): boolean {
  const { code } = (error ?? {}) as { code?: unknown };
  return typeof code === 'string' && FULL.has(code);
}

/** Errors of a full disk in words for the client; others as they are. */
export function storageError(error: unknown): unknown {
  return isDiskFull(error) ? new ServiceError('storage_full', 'The server has no storage left.') : error;
}
