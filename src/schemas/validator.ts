/** Compiles each body schema once and turns the first violation into one sentence with the field's path. */
import { Ajv, type ErrorObject, type ValidateFunction } from 'ajv';
import type { JsonSchema } from './json-schema.ts';
import { isPlainObject } from './plain-object.ts';
import { shorten } from './shorten.ts';

/** `shape`: a wrong type or a missing field. `range`: the right type with a value the field does not take. */
export type ViolationKind = 'shape' | 'range';

export class SchemaError extends Error {
  readonly kind: ViolationKind;
  /** Dotted path of the field, or null for the body itself. */
  readonly param: string | null;
  constructor(kind: ViolationKind, param: string | null, message: string) {
    super(message);
    this.name = 'SchemaError';
    this.kind = kind;
    this.param = param;
  }
}

const INT64_MIN = -(2n ** 63n);
const INT64_MAX = 2n ** 63n - 1n;
const LONGEST_ECHO = 64;

// allErrors stays false: a body of a million wrong items must not make a million error objects.
// ownProperties: inherited names such as `constructor` are never taken for fields.
function createCompiler(): Ajv {
  const ajv = new Ajv({ allErrors: false, verbose: true, allowUnionTypes: true, ownProperties: true, strict: true });
  ajv.addKeyword({ keyword: 'errorText', schemaType: 'object' });
  ajv.addKeyword({ keyword: 'unset', schemaType: 'boolean', validate: (_: boolean, data: unknown) => data === null });
  ajv.addKeyword({ keyword: 'int64', schemaType: 'boolean', validate: validateInt64, errors: true });
  return ajv;
}

let compiler: Ajv | undefined;

interface Int64Check {
  (schema: boolean, data: unknown): boolean;
  errors?: Partial<ErrorObject>[];
}

function validateInt64(_schema: boolean, data: unknown): boolean {
  const message = int64Problem(data);
  (validateInt64 as Int64Check).errors = message === null ? [] : [{ keyword: 'int64', message, params: {} }];
  return message === null;
}

function int64Problem(data: unknown): string | null {
  if (data === null) return null;
  if (typeof data !== 'bigint' && (typeof data !== 'number' || !Number.isInteger(data))) {
    return 'Input should be a valid integer (int_type)';
  }
  const value = BigInt(data);
  if (value < INT64_MIN) return `Input should be greater than or equal to ${INT64_MIN} (greater_than_equal)`;
  if (value > INT64_MAX) return `Input should be less than or equal to ${INT64_MAX} (less_than_equal)`;
  return null;
}

/** Throws SchemaError for the first violation; returns the schema's fields alone: what nobody has checked cannot be read by mistake. */
export type BodyValidator<T> = (body: unknown) => T;

/**
 * The bare check; whoever calls it words the violations. Compiled when it is first asked for: compiling all schemas takes a fifth of the time
 * from the start of the process to its first answer.
 */
export function lazySchema<T>(schema: JsonSchema): () => ValidateFunction<T> {
  let compiled: ValidateFunction<T> | undefined;
  return () => (compiled ??= (compiler ??= createCompiler()).compile<T>(schema));
}

export function compileBody<T>(schema: JsonSchema): BodyValidator<T> {
  const validator = lazySchema<T>(schema);
  const fields = Object.keys(schema.properties ?? {});
  return (body) => {
    if (!isPlainObject(body))
      throw new SchemaError('shape', null, `The body must be a JSON object, got ${kindOf(body)}.`);
    const validate = validator();
    if (validate(body)) return only(body, fields);
    throw toSchemaError(validate.errors?.[0]);
  };
}

function only<T>(body: T & Record<string, unknown>, fields: readonly string[]): T {
  const present = fields.filter((field) => Object.hasOwn(body, field));
  return Object.fromEntries(present.map((field) => [field, body[field]])) as T;
}

function kindOf(value: unknown): string {
  if (value === null) return 'null';
  return Array.isArray(value) ? 'an array' : `a ${typeof value}`;
}

function toSchemaError(error: ErrorObject | undefined): SchemaError {
  if (!error) return new SchemaError('shape', null, 'The body does not match the schema.');
  const path = dottedPath(error.instancePath);
  if (error.keyword === 'required') {
    const field = joinPath(path, String(error.params['missingProperty']));
    return new SchemaError('shape', field, `${field}: Field required (missing)`);
  }
  if (error.keyword === 'additionalProperties' || error.keyword === 'unset') {
    const name = error.keyword === 'unset' ? null : String(error.params['additionalProperty']).slice(0, LONGEST_ECHO);
    const field = name === null ? path : joinPath(path, name);
    return new SchemaError('shape', field, `${field}: Extra inputs are not permitted (extra_forbidden)`);
  }
  const text = (error.parentSchema as JsonSchema | undefined)?.errorText?.[error.keyword];
  if (text !== undefined) return new SchemaError('range', path, text.replace('{value}', echo(error.data)));
  return new SchemaError(kindOfKeyword(error.keyword), path, `${path ?? 'body'}: ${sentence(error)}`);
}

function kindOfKeyword(keyword: string): ViolationKind {
  return ['type', 'int64', 'enum', 'required', 'propertyNames'].includes(keyword) ? 'shape' : 'range';
}

function sentence(error: ErrorObject): string {
  if (error.keyword === 'enum') {
    const values = (error.params as { allowedValues: unknown[] }).allowedValues;
    return `Input should be one of ${values.map((value) => JSON.stringify(value)).join(', ')}, got ${echo(error.data)}.`;
  }
  if (error.keyword === 'type') {
    const types = error.params['type'] as JsonType | JsonType[];
    return `Input should be ${[types].flat().join(' or ')}, got ${echo(error.data)}.`;
  }
  return `${error.message ?? 'is not valid'}.`;
}
type JsonType = string;

/** What was sent, cut short: an error must not be larger than its request's fault deserves. */
export function echo(value: unknown): string {
  if (typeof value === 'bigint') return value.toString();
  if (Array.isArray(value)) return 'an array';
  if (typeof value === 'object' && value !== null) return 'an object';
  if (typeof value !== 'string') return Object.is(value, -0) ? '0' : String(value);
  return JSON.stringify(shorten(value, LONGEST_ECHO));
}

/** `/messages/0/content` to `messages.0.content`; null at the root. Long client-made keys are cut. */
function dottedPath(pointer: string): string | null {
  if (pointer === '') return null;
  const parts = pointer.slice(1).split('/');
  return parts.map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~').slice(0, LONGEST_ECHO)).join('.');
}

function joinPath(path: string | null, field: string): string {
  return path === null ? field : `${path}.${field}`;
}
