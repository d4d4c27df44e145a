/** Parameter values that came as bare text, as JSON text of the type that the tool's schema gives them. */
import { isPlainObject } from '../../../schemas/plain-object.ts';
import { scanJson } from './json-scanner.ts';
import { pythonLiteralAsJson } from './python-literal.ts';
import { child, followed, type Schema } from './schema-refs.ts';

type Kind = 'string' | 'integer' | 'number' | 'boolean' | 'structure' | 'unknown';

/** Tool name -> the schema of its parameters. `tools` as in the request; what is not of that shape has no schemas. */
export function parameterSchemas(tools: readonly unknown[]): Map<string, Schema> {
  const schemas = new Map<string, Schema>();
  for (const tool of tools) {
    const fn = child(tool, 'function');
    const name = child(fn, 'name');
    const parameters = child(fn, 'parameters');
    if (typeof name === 'string') schemas.set(name, isPlainObject(parameters) ? parameters : {});
  }
  return schemas;
}

/**
 * "null" is null for every type. So is "None" where no text can stand: templates of such models write null so in a history, and the model
 * after them. A boolean that is neither "true" nor "1" is false. Otherwise text that is no value of its type
 * stays a string, as does that of an unknown parameter or type. Of several types the first that fits counts, string last.
 */
export function valueAsJson(text: string, parameters: Schema | undefined, key: string): string {
  if (text.trim().toLowerCase() === 'null') return 'null';
  const kinds = kindsOf(child(child(parameters, 'properties'), key), parameters);
  if (text.trim() === 'None' && !kinds.includes('string') && !kinds.includes('unknown')) return 'null';
  for (const kind of kinds) {
    const json = convert(text.trim(), kind, kinds.length === 1);
    if (json !== null) return json;
  }
  return JSON.stringify(text);
}

function convert(text: string, kind: Kind, isOnly: boolean): string | null {
  if (kind === 'integer') return integerAsJson(text);
  if (kind === 'number') return numberAsJson(text);
  if (kind === 'boolean') return booleanAsJson(text, isOnly);
  return kind === 'structure' ? structureAsJson(text) : null;
}

function integerAsJson(text: string): string | null {
  const match = /^([+-]?)([0-9]+)$/.exec(text);
  if (!match) return null;
  const digits = (match[2] ?? '').replace(/^0+(?=[0-9])/, '');
  return (match[1] === '-' ? '-' : '') + digits;
}

/** All digits stay: a double would lose some, or be infinite. */
function numberAsJson(text: string): string | null {
  if (/^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$/.test(text)) return text;
  const parts = /^([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))([eE][+-]?[0-9]+)?$/.exec(text);
  if (!parts) return null;
  const [, sign = '', whole = '', behind, alone, exponent = ''] = parts;
  const fraction = alone ?? behind ?? '';
  const digits = whole.replace(/^0+(?=[0-9])/, '') || '0';
  return `${sign === '-' ? '-' : ''}${digits}${fraction === '' ? '' : `.${fraction}`}${exponent}`;
}

function booleanAsJson(text: string, isOnly: boolean): string | null {
  const lower = text.toLowerCase();
  if (lower === 'true' || lower === 'false') return lower;
  if (!isOnly) return null;
  return text === '1' ? 'true' : 'false';
}

function structureAsJson(text: string): string | null {
  if (scanJson(text)) return text;
  return /^[[({]/.test(text) ? pythonLiteralAsJson(text) : null;
}

const COMBINERS = ['anyOf', 'oneOf', 'allOf'];

/** The kinds that a schema names, in its order; `null` counts for nothing, since "null" is null anyway. */
function kindsOf(schema: unknown, root: unknown): Kind[] {
  const whole = isPlainObject(schema) ? followed(schema, root) : {};
  const parts = COMBINERS.flatMap((combiner) => {
    const list = child(whole, combiner);
    // One level is enough for optional values, which is what it is used for.
    return Array.isArray(list) ? list.filter(isPlainObject).flatMap((part) => shownKinds(followed(part, root))) : [];
  });
  return parts.length === 0 ? shownKinds(whole) : [...new Set([...typeKinds(whole), ...parts])];
}

/** Of a schema without types, what its keywords show. */
function shownKinds(schema: Schema): Kind[] {
  const kinds = typeKinds(schema);
  if (kinds.length > 0) return kinds;
  const listed = listedKinds(schema);
  if (listed.length > 0) return listed;
  const isStructure = child(schema, 'properties') !== undefined || child(schema, 'items') !== undefined;
  return isStructure ? ['structure'] : ['unknown'];
}

function typeKinds(schema: Schema): Kind[] {
  const type = child(schema, 'type');
  const names: unknown[] = Array.isArray(type) ? type : [type];
  const texts = names.filter((name) => typeof name === 'string' && name !== 'null');
  return [...new Set(texts.map((name) => kindOf(String(name))))];
}

/** Those of the values that `enum` or `const` names. */
function listedKinds(schema: Schema): Kind[] {
  const values: unknown = 'const' in schema ? [schema['const']] : schema['enum'];
  return Array.isArray(values) ? [...new Set(values.filter((value) => value !== null).map(kindOfValue))] : [];
}

function kindOfValue(value: unknown): Kind {
  if (typeof value === 'string') return 'string';
  if (typeof value === 'boolean') return 'boolean';
  return Array.isArray(value) || isPlainObject(value) ? 'structure' : 'number';
}

/** Type names of JSON Schema, and those of Python that tools come with. */
function kindOf(type: string): Kind {
  const name = type.trim().toLowerCase();
  if (/^(?:string|str|text|varchar|char|enum)$/.test(name)) return 'string';
  if (/^(?:int|uint|long|short|unsigned)/.test(name)) return 'integer';
  if (/^(?:num|float|double)/.test(name)) return 'number';
  if (/^bool/.test(name)) return 'boolean';
  return /^(?:object|arr|dict|list|tuple|map)/.test(name) ? 'structure' : 'unknown';
}
