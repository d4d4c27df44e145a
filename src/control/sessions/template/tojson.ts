/** The `tojson` filter as transformers defines it: json.dumps with ensure_ascii False and Python's separators. */
import type { Value } from './jinja.ts';
import { TemplateError } from './errors.ts';
import {
  bounded,
  floatText,
  ItemCount,
  integerText,
  isArray,
  isString,
  isUndefined,
  toText,
  type Key,
} from './values.ts';

export interface JsonOptions {
  ensureAscii: boolean;
  /** null = one line; a string is repeated per level. */
  indent: string | null;
  separators: [string, string];
  sortKeys: boolean;
}

const MAX_INDENT = 64;

/** Arguments in the order of transformers' function: ensure_ascii, indent, separators, sort_keys. */
export function jsonOptions(positional: Value[], keyword: Map<string, Value>): JsonOptions {
  const argument = (index: number, name: string): Value | undefined => positional[index] ?? keyword.get(name);
  const indent = readIndent(argument(1, 'indent'));
  return {
    ensureAscii: isTrue(argument(0, 'ensure_ascii')),
    indent,
    separators: readSeparators(argument(2, 'separators')) ?? [indent === null ? ', ' : ',', ': '],
    sortKeys: isTrue(argument(3, 'sort_keys')),
  };
}

function isTrue(value: Value | undefined): boolean {
  return value?.__bool__().value === true;
}

function readIndent(value: Value | undefined): string | null {
  if (!value || value.type === 'NullValue' || isUndefined(value)) return null;
  if (isString(value) && value.value.length <= MAX_INDENT) return value.value;
  if (value.type === 'IntegerValue' && Number(value.value) <= MAX_INDENT)
    return ' '.repeat(Math.max(0, Number(value.value)));
  throw new TemplateError(`tojson: indent must be a number up to ${MAX_INDENT}.`);
}

function readSeparators(value: Value | undefined): [string, string] | null {
  if (!value || value.type === 'NullValue' || isUndefined(value)) return null;
  const [item, key] = isArray(value) && value.value.length === 2 ? value.value : [];
  if (!item || !key || !isString(item) || !isString(key))
    throw new TemplateError('tojson: separators must be two strings.');
  return [item.value, key.value];
}

/** `count`: values written so far; a list may hold the same list many times over. */
export function toJson(value: Value, options: JsonOptions, depth = 0, count = new ItemCount()): string {
  count.add();
  if (isString(value)) return quote(value.value, options);
  if (isArray(value)) {
    return wrap(
      '[',
      ']',
      value.value.map((item) => toJson(item, options, depth + 1, count)),
      options,
      depth,
    );
  }
  if (value.value instanceof Map) {
    const entries = [...(value.value as Map<Key, Value>)];
    if (options.sortKeys) entries.sort(([a], [b]) => (a < b ? -1 : 1));
    const items = entries.map(
      ([key, item]) => quote(String(key), options) + options.separators[1] + toJson(item, options, depth + 1, count),
    );
    return wrap('{', '}', items, options, depth);
  }
  if (value.type === 'NullValue') return 'null';
  if (value.type === 'BooleanValue') return value.value ? 'true' : 'false';
  if (value.type === 'IntegerValue') return integerText(value.value);
  if (value.type === 'FloatValue') return floatText(Number(value.value));
  throw new TemplateError(
    `tojson: ${isUndefined(value) ? 'an undefined value' : toText(value)} cannot be written as JSON.`,
  );
}

function wrap(open: string, close: string, items: string[], options: JsonOptions, depth: number): string {
  if (items.length === 0) return open + close;
  if (options.indent === null) return bounded(open + items.join(options.separators[0]) + close);
  const outer = `\n${options.indent.repeat(depth)}`;
  const inner = outer + options.indent;
  return bounded(open + inner + items.join(options.separators[0] + inner) + outer + close);
}

function quote(text: string, options: JsonOptions): string {
  const json = JSON.stringify(text);
  if (!options.ensureAscii) return json;
  // Private-use characters may be escape marks of special-text.ts and must stay single characters; see there.
  return json.replace(
    /[\x7f-\udfff\uf900-\uffff]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
