/** Arguments in formats that are not JSON as a whole: one value per parameter, in the order of the schema. */
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
/** Keywords of a text that is written bare. */
const TEXT_KEYWORDS: ReadonlySet<string> = new Set([
  'type',
  'enum',
  'const',
  'title',
  'description',
  'default',
  'examples',
]);
const KINDS: ReadonlySet<unknown> = new Set(['integer', 'number', 'boolean', 'object', 'array', 'null']);

/** A run of text in which no tag of the format begins. */
const UNIT = '(?:[^<]|<+(?:[^<p/]|/[^<pft]|/p[^<a]|/f[^<u]|/t[^<o]|p[^<a]|pa[^<r]))';
const BRACKET = '<+(?:[^<p/]|/[^<pft]|p[^<a])';
/** Any such text but the word null, which the format reads as no value. */
const TEXT = notNull();

interface Parameter {
  name: string;
  schema: Record<string, unknown>;
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
  const parts = sorted.map(({ name, schema, required }, index) => {
    const value = sequence(constant(`${leads && index > 0 ? ', ' : ''}${name}=`), schemaFormat(schema));
    const part = leads ? value : sequence(value, constant(', '));
    return required ? part : perhaps(part);
  });
  return parts.length > 0 ? sequence(...parts) : constant('');
}

/** `<parameter=KEY>\nVALUE\n</parameter>\n`, texts without quotes. */
export function taggedParameters(tool: Tool): Format {
  const parts = parametersOf(tool).map((parameter) => {
    if (/[>\n]/.test(parameter.name)) refuse(tool, 'properties', 'a name holds ">" or a line break');
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
  const names: unknown[] = Array.isArray(required) ? required : [];
  const schemas = Object.entries(properties as Record<string, unknown>);
  const unknown = names.find((name) => !schemas.some(([known]) => known === name));
  if (unknown !== undefined) refuse(tool, 'required', `${JSON.stringify(unknown)} is not among the properties`);
  return schemas.map(([name, schema]) => {
    if (typeof schema !== 'object' || schema === null)
      refuse(tool, `properties.${name}`, 'must be a schema with a type');
    const shared = { ...($defs === undefined ? {} : { $defs }), ...(definitions === undefined ? {} : { definitions }) };
    return { name, schema: { ...shared, ...schema }, required: names.includes(name) };
  });
}

/** What the reply parser turns back into a value of the schema's type. */
function bareValue(tool: Tool, { name, schema }: Parameter): Format {
  const types: unknown[] = Array.isArray(schema['type']) ? schema['type'] : [schema['type']];
  if (types.length > 0 && types.every((type) => KINDS.has(type))) return schemaFormat(schema);
  const others = types.filter((type) => type !== 'string' && type !== 'null');
  if (others.length > 0) refuse(tool, `properties.${name}.type`, 'this tool format needs one type');
  const { $defs: _defs, definitions: _definitions, ...own } = schema;
  const keyword = Object.keys(own).find((key) => !TEXT_KEYWORDS.has(key));
  if (keyword)
    refuse(tool, `properties.${name}.${keyword}`, 'this tool format writes bare texts and cannot keep to it');
  const listed = 'const' in own ? [own['const']] : own['enum'];
  const text = listed === undefined ? { type: 'regex', pattern: TEXT } : choiceOf(tool, name, listed);
  return types.includes('null') && listed === undefined ? either(text, constant('null')) : text;
}

function choiceOf(tool: Tool, name: string, listed: unknown): Format {
  const values: unknown[] = Array.isArray(listed) ? listed : [];
  const unsafe = (text: string) => /<\/?(?:param|func|tool)/.test(text) || text.trim().toLowerCase() === 'null';
  if (values.length === 0 || values.some((value) => typeof value !== 'string' || unsafe(value)))
    refuse(tool, `properties.${name}.enum`, 'this tool format needs texts that hold none of its marks');
  return { type: 'choice', choices: values };
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
