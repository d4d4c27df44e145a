/** response_format and structured_outputs of a request -> what to compile. */
import { isPlainObject } from '../../schemas/plain-object.ts';
import type { GrammarSpec, NativeGrammarOptions, NativeGrammarSource } from '../engine/native-grammar.ts';
import { writeJson } from '../json-numbers.ts';
import { SERVE } from './compile.ts';

export class GrammarRequestError extends Error {
  /** Field of the request body. */
  readonly param: string;

  constructor(param: string, message: string) {
    super(message);
    this.name = 'GrammarRequestError';
    this.param = param;
  }
}

type Fields = Record<string, unknown>;

const KINDS = ['json', 'regex', 'choice', 'grammar', 'json_object', 'structural_tag'] as const;
/** Two of these are refused in words of their own, as vLLM has it. */
const COMMON_KINDS: ReadonlySet<string> = new Set(['json', 'regex', 'choice']);
const STRUCTURED = 'structured_outputs';
const FORMAT = 'response_format';
const TWO_KINDS = 'You can only use one kind of structured outputs constraint.';
const TWO_COMMON_KINDS =
  "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').";
const NO_KIND = 'You must use one kind of structured outputs constraint.';
/** The name under which `_backend` may ask for this engine. */
const BACKENDS = new Set(['auto', 'tandem']);

/** Null where the request constrains nothing. Throws GrammarRequestError before anything is compiled. */
export function grammarRequest(responseFormat: unknown, structuredOutputs: unknown): GrammarSpec | null {
  const fromFormat = readResponseFormat(responseFormat);
  const fields = readFields(structuredOutputs);
  const given = fields ? KINDS.filter((kind) => isGiven(fields[kind])) : [];
  if (given.filter((kind) => COMMON_KINDS.has(kind)).length > 1)
    throw new GrammarRequestError(STRUCTURED, TWO_COMMON_KINDS);
  if (given.length + (fromFormat ? 1 : 0) > 1) throw new GrammarRequestError(STRUCTURED, TWO_KINDS);
  if (!fields) return fromFormat && { source: fromFormat, options: SERVE };
  const kind = given[0];
  if (!kind && !fromFormat) throw new GrammarRequestError(STRUCTURED, NO_KIND);
  const source = kind ? readKind(kind, fields[kind]) : fromFormat;
  return source && { source, options: readOptions(fields) };
}

function readFields(value: unknown): Fields | null {
  if (value === null || value === undefined) return null;
  if (!isPlainObject(value)) throw new GrammarRequestError(STRUCTURED, `${STRUCTURED} must be an object.`);
  return Object.keys(value).length === 0 ? null : value;
}

function readResponseFormat(value: unknown): NativeGrammarSource | null {
  if (value === null || value === undefined) return null;
  if (!isPlainObject(value)) throw new GrammarRequestError(FORMAT, `${FORMAT} must be an object.`);
  switch (value['type']) {
    case 'text':
      return null;
    case 'json_object':
      return { kind: 'json_object' };
    case 'json_schema':
      return readSchemaFormat(value['json_schema']);
    case 'structural_tag':
      return { kind: 'structural_tag', text: writeJson(value) };
    default:
      throw new GrammarRequestError(FORMAT, `${FORMAT}.type must be text, json_object, json_schema or structural_tag.`);
  }
}

function readSchemaFormat(format: unknown): NativeGrammarSource {
  if (!isPlainObject(format)) {
    const message = "When response_format type is 'json_schema', the 'json_schema' field must be provided.";
    throw new GrammarRequestError(FORMAT, message);
  }
  checkSchemaLabels(format);
  const schema = format['schema'] ?? format['json_schema'];
  if (!isPlainObject(schema)) {
    throw new GrammarRequestError(FORMAT, `${FORMAT}.json_schema.schema must be an object.`);
  }
  return { kind: 'json_schema', text: writeJson(schema) };
}

/** Its name, description and strict say nothing that changes the answer: every schema is enforced. They must be well-formed. */
function checkSchemaLabels(format: Fields): void {
  const { name, description, strict } = format;
  if (typeof name !== 'string' || name === '') {
    throw new GrammarRequestError(FORMAT, `${FORMAT}.json_schema.name must be a string that is not empty.`);
  }
  if (isGiven(description) && typeof description !== 'string') {
    throw new GrammarRequestError(FORMAT, `${FORMAT}.json_schema.description must be a string.`);
  }
  if (isGiven(strict) && typeof strict !== 'boolean') {
    throw new GrammarRequestError(FORMAT, `${FORMAT}.json_schema.strict must be a boolean.`);
  }
}

function readKind(kind: (typeof KINDS)[number], value: unknown): NativeGrammarSource {
  switch (kind) {
    case 'json':
      return { kind: 'json_schema', text: readObject(kind, value) };
    case 'regex':
      return { kind: 'regex', text: readText(kind, value) };
    case 'grammar':
      return { kind: 'grammar', text: readText(kind, value) };
    case 'choice':
      return readChoice(value);
    case 'json_object':
      if (value !== true) throw new GrammarRequestError(STRUCTURED, 'json_object must be true where it is given.');
      return { kind: 'json_object' };
    case 'structural_tag':
      return { kind: 'structural_tag', text: readObject(kind, value) };
  }
}

/** A text is parsed where it is compiled, on a thread of its own: JSON of very many names takes seconds. */
function readObject(kind: string, value: unknown): string {
  return isPlainObject(value) ? writeJson(value) : readText(kind, value);
}

function readText(kind: string, value: unknown): string {
  if (typeof value !== 'string') throw new GrammarRequestError(STRUCTURED, `${kind} must be a string.`);
  if (value === '') throw new GrammarRequestError(STRUCTURED, `${kind} must not be empty.`);
  if (value.includes('\0')) throw new GrammarRequestError(STRUCTURED, `${kind} must not hold NUL.`);
  return value;
}

function readChoice(value: unknown): NativeGrammarSource {
  const choices: unknown[] = Array.isArray(value) ? value : [];
  if (choices.length === 0) throw new GrammarRequestError(STRUCTURED, 'choice must be a list that is not empty.');
  const texts = choices.filter((choice) => typeof choice === 'string');
  if (texts.length !== choices.length) throw new GrammarRequestError(STRUCTURED, 'choice must hold strings.');
  return { kind: 'choice', choices: texts };
}

function readOptions(fields: Fields): NativeGrammarOptions {
  checkBackend(fields);
  // There is no second engine to fall back to, so both values of disable_fallback mean the same.
  readFlag(fields, 'disable_fallback');
  const space = fields['whitespace_pattern'] ?? null;
  if (space !== null && typeof space !== 'string')
    throw new GrammarRequestError(STRUCTURED, 'whitespace_pattern must be a string.');
  return {
    ...SERVE,
    anySpace: !readFlag(fields, 'disable_any_whitespace') && space !== '',
    onlyDeclared: readFlag(fields, 'disable_additional_properties'),
    space: space ?? '',
  };
}

function checkBackend(fields: Fields): void {
  const backend = fields['_backend'];
  if (backend === null || backend === undefined) return;
  if (typeof backend === 'string' && BACKENDS.has(backend)) return;
  throw new GrammarRequestError(STRUCTURED, 'Request-level structured output backend selection is not supported.');
}

function readFlag(fields: Fields, name: string): boolean {
  const value = fields[name];
  if (value === undefined || value === null) return false;
  if (typeof value !== 'boolean') throw new GrammarRequestError(STRUCTURED, `${name} must be a boolean.`);
  return value;
}

function isGiven(value: unknown): boolean {
  return value !== undefined && value !== null;
}
