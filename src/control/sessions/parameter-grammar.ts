/** Arguments in formats that are not JSON as a whole: one value per parameter, in the order of the schema. */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { writeJson } from '../json-numbers.ts';
import { jsonWeight } from '../json-weight.ts';
import { followed, type Schema } from './parsers/schema-refs.ts';
import { SessionError } from './session.ts';
import { constant, either, perhaps, schemaFormat, sequence, type Format, type Tool } from './tag-formats.ts';

/** Keywords of the whole schema that these formats can keep to. */
const ROOT_KEYWORDS: ReadonlySet<string> = new Set([
  'type',
  'properties',
  'required',
  'additionalProperties',
  'title',
  'description',
  '$defs',
  'definitions',
  '$schema',
  'examples',
]);
/** Of the definitions, once for each parameter, by jsonWeight: a grammar of four megabytes is refused, and theirs is a part of it. */
const MAX_SHARED = 2 ** 25;
/** Keywords that say nothing about which values fit. */
const REMARKS = ['title', 'description', 'default', 'examples'];
const KINDS: ReadonlySet<unknown> = new Set(['integer', 'number', 'boolean', 'object', 'array', 'null']);

/** A run of text in which no tag of the format begins. */
const UNIT = '(?:[^<]|<+(?:[^<p/]|/[^<pft]|/p[^<a]|/f[^<u]|/t[^<o]|p[^<a]|pa[^<r]))';
const BRACKET = '<+(?:[^<p/]|/[^<pft]|p[^<a])';
/** Any such text but the word null, which the format reads as no value. */
const TEXT = notNull();

interface Parameter {
  name: string;
  schema: Schema;
  /** Definitions of the whole that its references lead to. */
  shared: Schema;
  required: boolean;
}

/** `a=1, b="x"`: Python reads JSON's values, and the reply parser its three words too. */
export function pythonParameters(tool: Tool): Format {
  const parameters = parametersOf(tool);
  const bad = parameters.find(({ name }) => !/^[\p{L}_][\p{L}\p{N}_]*$/u.test(name));
  if (bad) refuse(tool, `properties.${bad.name.slice(0, 60)}`, 'its name cannot be a Python argument');
  // A comma before all but the first, where the first always comes; else one behind each.
  const sorted = [...parameters.filter(({ required }) => required), ...parameters.filter(({ required }) => !required)];
  const leads = sorted[0]?.required === true;
  const parts = sorted.map((parameter, index) => {
    const head = constant(`${leads && index > 0 ? ', ' : ''}${parameter.name}=`);
    const value = sequence(head, wholeValue(parameter));
    const part = leads ? value : sequence(value, constant(', '));
    return parameter.required ? part : perhaps(part);
  });
  return parts.length > 0 ? sequence(...parts) : constant('');
}

/** `<parameter=KEY>\nVALUE\n</parameter>\n`, texts without quotes. */
export function taggedParameters(tool: Tool): Format {
  const parts = parametersOf(tool).map((parameter) => {
    if (/[>\n]/.test(parameter.name)) refuse(tool, 'properties', 'a name holds ">" or a line break');
    if (parameter.name !== parameter.name.trim()) refuse(tool, 'properties', 'a name begins or ends with white space');
    const head = constant(`<parameter=${parameter.name}>\n`);
    const part = sequence(head, bareValue(tool, parameter), constant('\n</parameter>\n'));
    return parameter.required ? part : perhaps(part);
  });
  return parts.length > 0 ? sequence(...parts) : constant('');
}

function parametersOf(tool: Tool): Parameter[] {
  const { properties = {}, required = [], $defs, definitions } = tool.parameters;
  const other = Object.keys(tool.parameters).find((keyword) => !ROOT_KEYWORDS.has(keyword));
  if (other) refuse(tool, other, 'this tool format cannot keep to it');
  const names = new Set<unknown>(Array.isArray(required) ? required : []);
  const schemas = Object.entries(properties as Record<string, unknown>);
  const known = new Set<unknown>(Object.keys(properties as Record<string, unknown>));
  const unknown = [...names].find((name) => !known.has(name));
  if (unknown !== undefined) refuse(tool, 'required', `${writeJson(unknown)} is not among the properties`);
  const shared = { ...($defs === undefined ? {} : { $defs }), ...(definitions === undefined ? {} : { definitions }) };
  if (schemas.length * jsonWeight(shared) > MAX_SHARED) {
    refuse(tool, $defs === undefined ? 'definitions' : '$defs', 'they are too large for so many parameters');
  }
  return schemas.map(([name, schema]) => {
    if (!isPlainObject(schema)) refuse(tool, `properties.${name}`, 'must be a schema with a type');
    return { name, schema: followed(schema, tool.parameters), shared, required: names.has(name) };
  });
}

/** What the reply parser turns back into a value of the schema's type. */
function bareValue(tool: Tool, parameter: Parameter): Format {
  const { name, schema } = parameter;
  const present = presentOf(schema);
  if (present) {
    const value = bareValue(tool, { ...parameter, schema: followed(present, tool.parameters) });
    return either(value, constant('null'));
  }
  const types = typesOf(schema);
  if (types.length > 0 && types.every((type) => KINDS.has(type))) return wholeValue(parameter);
  const others = types.filter((type) => type !== 'string' && type !== 'null');
  if (others.length > 0) refuse(tool, `properties.${name}.type`, 'this tool format needs one type');
  const listed = listedIn(schema);
  if (listed) checkListed(tool, name, listed);
  const text = { type: 'bare_string', json_schema: wholeSchema(parameter), pattern: TEXT };
  const nullable = types.includes('null') && (listed === null || listed.includes(null));
  return nullable ? either(text, constant('null')) : text;
}

function wholeValue(parameter: Parameter): Format {
  return schemaFormat(wholeSchema(parameter));
}

function wholeSchema({ schema, shared }: Parameter): Schema {
  return { ...shared, ...schema };
}

/** `anyOf` of a schema and null is how pydantic and zod write a value that may be absent: that schema. */
function presentOf({ anyOf, oneOf, ...others }: Schema): Schema | null {
  const parts: unknown = anyOf ?? oneOf;
  const isOptional = Array.isArray(parts) && parts.length === 2 && (anyOf === undefined || oneOf === undefined);
  if (!isOptional || Object.keys(others).some((key) => !REMARKS.includes(key))) return null;
  const [first, second] = parts as unknown[];
  const present = isNull(second) ? first : isNull(first) ? second : null;
  return typeof present === 'object' ? (present as Schema | null) : null;
}

function isNull(schema: unknown): boolean {
  return writeJson(schema) === '{"type":"null"}';
}

/** A list of texts says its type itself; the reply parser takes what has no type for a text. */
function typesOf(schema: Schema): unknown[] {
  const { type } = schema;
  if (type !== undefined) return Array.isArray(type) ? type : [type];
  const textOrNull = (value: unknown) => (value === null ? 'null' : typeof value === 'string' ? 'string' : undefined);
  return listedIn(schema)?.map(textOrNull) ?? [undefined];
}

function listedIn(schema: Schema): unknown[] | null {
  if ('const' in schema) return [schema['const']];
  if (!('enum' in schema)) return null;
  return Array.isArray(schema['enum']) ? schema['enum'] : [];
}

/** Of listed texts none may be left out because it cannot be written. */
function checkListed(tool: Tool, name: string, listed: unknown[]): void {
  const values = listed.filter((value) => value !== null);
  const unsafe = (text: string) => /<\/?(?:param|func|tool)/.test(text) || text.trim().toLowerCase() === 'null';
  if (values.length === 0 || values.some((value) => typeof value !== 'string' || unsafe(value)))
    refuse(tool, `properties.${name}.enum`, 'this tool format needs texts that hold none of its marks');
}

function notNull(): string {
  const rest = `${UNIT}*`;
  const after = (letters: string) => `(?:(?:[^${letters}<]|${BRACKET})${rest})?`;
  const word = `[nN](?:${after('uU')}|[uU](?:${after('lL')}|[lL](?:${after('lL')}|[lL]\\s*(?:[^\\s<]|${BRACKET})${rest})))`;
  return `\\s*(?:(?:[^nN\\s<]|${BRACKET})${rest}|${word})?`;
}

function refuse(tool: Tool, where: string, why: string): never {
  const param = `tools.${tool.index}.function.parameters`;
  throw new SessionError('bad_request', `${param}.${where} cannot be strict: ${why}.`, param);
}
