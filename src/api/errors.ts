/** The catalogue of errors: code -> HTTP status and type. docs/errors.md lists the same table; a test compares them. */
import type { SessionErrorCode } from '../control/sessions/session.ts';
import { SessionError } from '../control/sessions/session.ts';
import { ServiceError, storageError, type ServiceErrorCode } from '../control/training/service-error.ts';
import type { ErrorBody } from '../schemas/error-body.ts';
import { ValidationError, type ValidationBody, type ValidationDetail } from '../schemas/validation-error.ts';
import { SchemaError } from '../schemas/validator.ts';

export interface ErrorEntry {
  status: number;
  type: string;
}

export const ERRORS = {
  invalid_body: { status: 400, type: 'Bad Request' },
  invalid_parameter: { status: 400, type: 'BadRequestError' },
  invalid_user_input: { status: 400, type: 'InvalidUserInput' },
  not_built: { status: 400, type: 'BadRequestError' },
  answer_too_large: { status: 400, type: 'BadRequestError' },
  context_length: { status: 400, type: 'BadRequestError' },
  unauthorized: { status: 401, type: 'AuthenticationError' },
  forbidden: { status: 403, type: 'PermissionDeniedError' },
  quota_exceeded: { status: 403, type: 'PermissionDeniedError' },
  model_not_found: { status: 404, type: 'NotFoundError' },
  not_found: { status: 404, type: 'Not Found' },
  method_not_allowed: { status: 405, type: 'Method Not Allowed' },
  no_such_resource: { status: 404, type: 'NotFoundError' },
  request_timeout: { status: 408, type: 'Request Timeout' },
  conflict: { status: 409, type: 'ConflictError' },
  body_too_large: { status: 413, type: 'Payload Too Large' },
  unsupported_encoding: { status: 415, type: 'Unsupported Media Type' },
  validation: { status: 422, type: 'HTTPValidationError' },
  queue_full: { status: 429, type: 'RateLimitError' },
  headers_too_large: { status: 431, type: 'Request Header Fields Too Large' },
  engine_failed: { status: 500, type: 'InternalServerError' },
  internal: { status: 500, type: 'InternalServerError' },
  unavailable: { status: 503, type: 'ServiceUnavailableError' },
  storage_full: { status: 507, type: 'InsufficientStorageError' },
} as const satisfies Record<string, ErrorEntry>;

export type ErrorCode = keyof typeof ERRORS;

/** What a client is told of a fault that is not its own; the log has the rest. */
const INTERNAL_MESSAGE = 'Internal server error';

export class ApiError extends Error {
  readonly code: ErrorCode;
  readonly param: string | null;
  /** For 429 and 503. */
  readonly retryAfterSeconds: number | null;
  constructor(code: ErrorCode, message: string, param: string | null = null, retryAfterSeconds: number | null = null) {
    super(message);
    this.name = 'ApiError';
    this.code = code;
    this.param = param;
    this.retryAfterSeconds = retryAfterSeconds;
  }

  get status(): number {
    return ERRORS[this.code].status;
  }

  toBody(): ErrorBody | ValidationBody {
    return this.toErrorBody();
  }

  toErrorBody(): ErrorBody {
    const { status, type } = ERRORS[this.code];
    return { error: { message: this.message, type, param: this.param, code: status } };
  }
}

/** The training endpoints tell violations as their clients know them. */
class ValidationApiError extends ApiError {
  readonly details: ValidationDetail[];
  constructor(error: ValidationError) {
    super('validation', error.message);
    this.name = 'ValidationApiError';
    this.details = error.details;
  }

  override toBody(): ValidationBody {
    return { detail: this.details.map((detail) => ({ ...detail, loc: detail.loc.map(String) })) };
  }
}

/** The client has gone: nothing can be told to it. */
export class ClientGoneError extends Error {
  constructor() {
    super('The client closed the connection.');
    this.name = 'ClientGoneError';
  }
}

const SESSION_CODES: Record<SessionErrorCode, ErrorCode> = {
  bad_request: 'invalid_parameter',
  context_length: 'context_length',
  queue_full: 'queue_full',
  unavailable: 'unavailable',
  adapter_failed: 'internal',
  engine_failed: 'engine_failed',
};

/** Any thrown value as an ApiError. Only messages made for clients pass; everything else becomes 'Internal server error'. */
export function toApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof SchemaError) return fromSchema(error);
  if (error instanceof SessionError) return fromSession(error);
  if (error instanceof ValidationError) return new ValidationApiError(error);
  // A full disk may be met by any request that writes.
  const service = storageError(error);
  if (service instanceof ServiceError) return fromService(service);
  return new ApiError('internal', INTERNAL_MESSAGE);
}

/** A value that a field does not take is told by the field's name, without its place in a list: as rules outside of schemas are. */
function fromSchema({ kind, message, param }: SchemaError): ApiError {
  if (kind === 'shape') return new ApiError('invalid_body', message, param);
  return new ApiError('invalid_parameter', message, param?.replace(/\.\d+$/, '') ?? null);
}

function fromSession(error: SessionError): ApiError {
  const code = SESSION_CODES[error.code];
  if (code === 'engine_failed') return new ApiError(code, INTERNAL_MESSAGE);
  const retry = code === 'queue_full' || code === 'unavailable' ? wholeSeconds(error.retryAfterSeconds) : null;
  return new ApiError(code, error.message, error.param, retry);
}

const SERVICE_CODES: Record<ServiceErrorCode, ErrorCode> = {
  not_found: 'no_such_resource',
  forbidden: 'forbidden',
  conflict: 'conflict',
  too_large: 'body_too_large',
  queue_full: 'queue_full',
  quota_exceeded: 'quota_exceeded',
  storage_full: 'storage_full',
  file_lost: 'internal',
  unavailable: 'unavailable',
};

function fromService({ code, message, param, retryAfterSeconds }: ServiceError): ApiError {
  const retry = code === 'unavailable' || code === 'queue_full' ? wholeSeconds(retryAfterSeconds) : null;
  return new ApiError(SERVICE_CODES[code], message, param, retry);
}

function wholeSeconds(seconds: number | null): number {
  return seconds !== null && Number.isFinite(seconds) ? Math.max(1, Math.ceil(seconds)) : 1;
}
