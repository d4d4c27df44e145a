/** The subset of JSON Schema that request bodies use, and small builders for its fields. */
export type JsonType = 'string' | 'number' | 'integer' | 'boolean' | 'object' | 'array' | 'null';

export interface JsonSchema {
  type?: JsonType | JsonType[];
  description?: string;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  items?: JsonSchema;
  enum?: unknown[];
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  maxItems?: number;
  maxProperties?: number;
  pattern?: string;
  additionalProperties?: boolean | JsonSchema;
  /** A signed 64-bit integer, given as a number or (beyond 2^53) as a bigint. */
  int64?: boolean;
  /** null alone: a key that means nothing here, left at its default. */
  unset?: boolean;
  /** Sentences for a violated keyword, where `{value}` stands for what was sent. */
  errorText?: Partial<Record<string, string>>;
}

/** A field that may also be null. */
export function nullable(schema: JsonSchema): JsonSchema {
  const types = schema.type === undefined ? [] : Array.isArray(schema.type) ? schema.type : [schema.type];
  return { ...schema, type: [...types, 'null'] };
}

/** For `additionalProperties` of settings: clients that are newer than this server send null for what it does not know. */
export const ONLY_UNSET: JsonSchema = { unset: true };

type Bounds = Omit<JsonSchema, 'type' | 'errorText'>;

export const boolean = (): JsonSchema => ({ type: 'boolean' });
export const string = (bounds: Bounds = {}): JsonSchema => ({ type: 'string', ...bounds });
export const object = (bounds: Bounds = {}): JsonSchema => ({ type: 'object', ...bounds });
export const array = (items: JsonSchema, bounds: Bounds = {}): JsonSchema => ({ type: 'array', items, ...bounds });
/** One of these texts, or null. */
export const oneOf = (...values: string[]): JsonSchema => ({ type: ['string', 'null'], enum: [...values, null] });

/** `outOfRange` is the sentence for every violated bound. */
export function number(bounds: Bounds = {}, outOfRange?: string): JsonSchema {
  return { type: 'number', ...bounds, ...rangeText(outOfRange) };
}

export function integer(bounds: Bounds = {}, outOfRange?: string): JsonSchema {
  return { type: 'integer', ...bounds, ...rangeText(outOfRange) };
}

function rangeText(text: string | undefined): Pick<JsonSchema, 'errorText'> {
  return text === undefined ? {} : { errorText: { minimum: text, maximum: text, exclusiveMinimum: text } };
}
