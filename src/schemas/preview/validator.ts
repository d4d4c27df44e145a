/** Compiles schemas of the training endpoints: a violation becomes {loc, msg, type}, as their clients expect it. */
import type { ErrorObject } from 'ajv';
import type { JsonSchema } from '../json-schema.ts';
import { shorten } from '../shorten.ts';
import { ValidationError, type ValidationDetail } from '../validation-error.ts';
import { echo, lazySchema } from '../validator.ts';

type Loc = (string | number)[];

/** Throws ValidationError for the first violation; `loc` is where the value lies in the request. */
export type PreviewValidator<T> = (value: unknown, loc?: Loc) => T;

export function compilePreview<T>(schema: JsonSchema): PreviewValidator<T> {
  const validator = lazySchema<T>(schema);
  return (value, loc = ['body']) => {
    const validate = validator();
    if (validate(value)) return value;
    throw new ValidationError([toDetail(validate.errors?.[0], loc, value)]);
  };
}

const TYPE_RULES: Readonly<Record<string, [rule: string, what: string]>> = {
  string: ['string_type', 'a valid string'],
  integer: ['int_type', 'a valid integer'],
  number: ['float_type', 'a valid number'],
  boolean: ['bool_type', 'a valid boolean'],
  object: ['dict_type', 'a valid dictionary'],
  array: ['list_type', 'a valid list'],
  null: ['none_required', 'null'],
};

const RULES: Readonly<Record<string, string>> = {
  minimum: 'greater_than_equal',
  maximum: 'less_than_equal',
  exclusiveMinimum: 'greater_than',
  minLength: 'string_too_short',
  maxLength: 'string_too_long',
  minItems: 'too_short',
  maxItems: 'too_long',
  pattern: 'string_pattern_mismatch',
  enum: 'literal_error',
};

function toDetail(error: ErrorObject | undefined, base: Loc, root: unknown): ValidationDetail {
  if (!error) return { loc: base, msg: 'The value does not match its schema.', type: 'value_error' };
  const loc = [...base, ...location(error.instancePath, root)];
  const text = (error.parentSchema as JsonSchema | undefined)?.errorText?.[error.keyword];
  const msg = text === undefined ? null : text.replace('{value}', echo(error.data));
  if (error.keyword === 'required') {
    return { loc: [...loc, String(error.params['missingProperty'])], msg: 'Field required', type: 'missing' };
  }
  if (error.keyword === 'additionalProperties') {
    const name = shorten(String(error.params['additionalProperty']), LONGEST_KEY);
    return { loc: [...loc, name], msg: 'Extra inputs are not permitted', type: 'extra_forbidden' };
  }
  if (error.keyword === 'unset') return { loc, msg: 'Extra inputs are not permitted', type: 'extra_forbidden' };
  if (error.keyword === 'type') {
    const types = [error.params['type'] as string | string[]].flat().filter((type) => type !== 'null');
    const [rule, what] = TYPE_RULES[types[0] ?? 'null'] ?? ['value_error', 'valid'];
    return { loc, msg: msg ?? `Input should be ${what}`, type: rule };
  }
  return { loc, msg: msg ?? sentence(error), type: RULES[error.keyword] ?? 'value_error' };
}

function sentence(error: ErrorObject): string {
  if (error.keyword !== 'enum') return `Input ${error.message ?? 'is not valid'}`;
  const values = (error.params as { allowedValues: unknown[] }).allowedValues.filter((value) => value !== null);
  return `Input should be ${values.map((value) => JSON.stringify(value)).join(' or ')}`;
}

/** Walks the pointer beside the value: an index is a number only where an array lies. */
function location(pointer: string, root: unknown): Loc {
  const loc: Loc = [];
  let value = root;
  for (const part of pointer === '' ? [] : pointer.slice(1).split('/')) {
    const name = part.replaceAll('~1', '/').replaceAll('~0', '~');
    loc.push(Array.isArray(value) ? Number(name) : shorten(name, LONGEST_KEY));
    value = (value as Record<string, unknown> | undefined)?.[name];
  }
  return loc;
}

/** Keys are the client's. */
const LONGEST_KEY = 64;
