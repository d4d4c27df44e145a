/** Runtime values of @huggingface/jinja: making them, telling them apart, and Python's str, repr and == on them. */
import { Environment, Interpreter } from './jinja.ts';
import type { Scope, Value } from './jinja.ts';
import { TemplateError } from './errors.ts';

const boxes = new Environment();

/** Of a dictionary. Data have texts only, templates write numbers too. */
export type Key = string | number | bigint;

/** A JavaScript value as a runtime value. */
export function box(value: unknown): Value {
  boxes.variables.clear();
  return boxes.set('value', value);
}

type FunctionConstructor = new (call: (args: Value[], scope: Scope) => Value) => Value;
const FunctionValue = box(() => null).constructor as FunctionConstructor;
const ArrayValue = box([]).constructor as new (items: Value[]) => Value;
const TupleValue = new Interpreter().evaluate(Object.assign({ type: 'TupleLiteral' }, { value: [] }), boxes)
  .constructor as typeof ArrayValue;
const ObjectValue = box({}).constructor as new (entries: Map<Key, Value>) => Value;
const FloatValue = box(0.5).constructor as new (value: number) => Value;
const IntegerValue = box(1).constructor as new (value: number | bigint) => Value;

export function boxFunction(call: (args: Value[], scope: Scope) => Value): Value {
  return new FunctionValue(call);
}

export function boxFloat(value: number): Value {
  return new FloatValue(value);
}

export function boxInteger(value: bigint): Value {
  return new IntegerValue(Number.isSafeInteger(Number(value)) ? Number(value) : value);
}

export function boxArray(items: Value[]): Value {
  return new ArrayValue(items);
}

export function boxTuple(items: Value[]): Value {
  return new TupleValue(items);
}

export function boxObject(entries: Map<Key, Value>): Value {
  return new ObjectValue(entries);
}

/** A dictionary's entries as pairs. */
export function boxItems(entries: Map<Key, Value>): Value {
  return boxArray([...entries].map(([key, value]) => new TupleValue([boxKey(key), value])));
}

/** What a dictionary is asked by; Python has more kinds. */
export function asKey(value: Value): Key {
  if (isString(value) || value.type === 'IntegerValue') return value.value as Key;
  throw new TemplateError(`a ${value.type} cannot be a key of a dictionary.`);
}

export function boxKey(key: Key): Value {
  return typeof key === 'string' ? box(key) : new IntegerValue(key);
}

/** Client data: like `box`, and numbers are those of json-numbers.ts. */
export function boxData(value: unknown): Value {
  if (typeof value === 'bigint') return new IntegerValue(value);
  if (value instanceof Number) return new FloatValue(value.valueOf());
  if (Array.isArray(value)) return boxArray(value.map(boxData));
  if (typeof value === 'object' && value !== null) {
    return boxObject(new Map(Object.entries(value).map(([key, item]) => [key, boxData(item)])));
  }
  return box(value);
}

export function isString(value: Value): value is Value & { value: string } {
  return value.type === 'StringValue';
}

/** Lists and tuples. */
export function isArray(value: Value): value is Value & { value: Value[] } {
  return Array.isArray(value.value);
}

export function isTuple(value: Value): value is Value & { value: Value[] } {
  return value.type === 'TupleValue';
}

/** Dictionaries; a namespace is none. */
export function isObject(value: Value): value is Value & { value: Map<Key, Value> } {
  return value.value instanceof Map && value.type !== 'NamespaceValue';
}

/** Texts that are marked as escaped (markup.ts). */
export const marked = new WeakSet<Value>();

export function isUndefined(value: Value): boolean {
  return value.type === 'UndefinedValue';
}

export function isNumber(value: Value): value is Value & { value: number } {
  return value.type === 'IntegerValue' || value.type === 'FloatValue';
}

/** Python's str(). */
export function toText(value: Value): string {
  return isString(value) ? value.value : isUndefined(value) ? '' : toRepr(value);
}

/** Python's repr(). */
export function toRepr(value: Value, count = new ItemCount()): string {
  count.add();
  if (isString(value)) return marked.has(value) ? `Markup(${stringRepr(value.value)})` : stringRepr(value.value);
  if (isArray(value)) return arrayRepr(value, count);
  if (value.value instanceof Map) {
    const entries = [...(value.value as Map<Key, Value>)].map(
      ([key, item]) => `${toRepr(boxKey(key), count)}: ${toRepr(item, count)}`,
    );
    return bounded(`{${entries.join(', ')}}`);
  }
  if (value.type === 'NullValue') return 'None';
  if (value.type === 'BooleanValue') return value.value ? 'True' : 'False';
  if (value.type === 'FloatValue') return floatText(Number(value.value));
  if (value.type === 'IntegerValue') return integerText(value.value);
  if (isUndefined(value)) return 'Undefined';
  throw new TemplateError(`a ${value.type} cannot be printed.`);
}

function arrayRepr(value: Value & { value: Value[] }, count: ItemCount): string {
  const items = value.value.map((item) => toRepr(item, count));
  if (!isTuple(value)) return bounded(`[${items.join(', ')}]`);
  return bounded(items.length === 1 ? `(${items[0]},)` : `(${items.join(', ')})`);
}

function stringRepr(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replace(UNPRINTABLE, (char) => ESCAPES[char] ?? hexEscape(char));
  return quote + (quote === "'" ? escaped.replaceAll("'", "\\'") : escaped) + quote;
}

/** What Python's repr() escapes, but for private-use characters: they may be marks of special-text.ts and must stay single characters. */
const UNPRINTABLE = /[\\\p{Cc}\p{Cf}\p{Cs}\p{Cn}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const ESCAPES: Record<string, string> = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' };

function hexEscape(char: string): string {
  const code = (char.codePointAt(0) ?? 0).toString(16);
  if (code.length > 4) return `\\U${code.padStart(8, '0')}`;
  return code.length > 2 ? `\\u${code.padStart(4, '0')}` : `\\x${code.padStart(2, '0')}`;
}

export function integerText(value: unknown): string {
  return typeof value === 'number' ? BigInt(Math.trunc(value)).toString() : String(value);
}

/** Python's repr of a float: shortest digits, exponent from 1e16 and below 1e-4, two exponent digits. */
export function floatText(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'nan' : value > 0 ? 'inf' : '-inf';
  if (Object.is(value, -0)) return '-0.0';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e16)) {
    return value.toExponential().replace(/e([+-])(\d)$/, 'e$10$2');
  }
  return Number.isInteger(value) ? value.toFixed(1) : value.toString();
}

/** Python's ==: by value, deep, numbers and booleans alike; undefined equals only undefined. */
export function isEqual(a: Value, b: Value, count = new ItemCount()): boolean {
  count.add();
  if (isArray(a) && isArray(b)) {
    return (
      isTuple(a) === isTuple(b) &&
      a.value.length === b.value.length &&
      a.value.every((item, i) => isEqual(item, b.value[i] ?? box(undefined), count))
    );
  }
  if (a.value instanceof Map && b.value instanceof Map) {
    const other = b.value;
    return a.value.size === other.size && [...a.value].every(([key, item]) => equalsEntry(item, other.get(key), count));
  }
  if (isNumeric(a) && isNumeric(b)) return Number(a.value) === Number(b.value);
  return a.type === b.type && a.value === b.value;
}

function equalsEntry(item: Value, other: Value | undefined, count: ItemCount): boolean {
  return other !== undefined && isEqual(item, other, count);
}

/** Booleans are numbers, as in Python. */
export function isNumeric(value: Value): boolean {
  return isNumber(value) || value.type === 'BooleanValue';
}

/** Python's %: of the divisor's sign. */
export function remainder(a: Value, b: Value): Value {
  if (!isNumber(a) || !isNumber(b)) throw new TemplateError(`"%" does not work between a ${a.type} and a ${b.type}.`);
  if (Number(b.value) === 0) throw new TemplateError('modulo by zero');
  if (a.type === 'FloatValue' || b.type === 'FloatValue') {
    const [divisor, rest] = [Number(b.value), Number(a.value) % Number(b.value)];
    return new FloatValue(rest !== 0 && rest < 0 !== divisor < 0 ? rest + divisor : rest);
  }
  const [divisor, rest] = [BigInt(b.value), BigInt(a.value) % BigInt(b.value)];
  const whole = rest !== 0n && rest < 0n !== divisor < 0n ? rest + divisor : rest;
  return boxInteger(whole);
}

/** Characters of any one string or rendering: far beyond every context window, far below what hurts. */
export const MAX_TEXT = 8 * 1024 * 1024;
export const MAX_ITEMS = 500_000;
/** Of what is padded, and of what `indent` puts before a line. */
export const MAX_WIDTH = 10_000;

/** Bounds one walk through a value: shared parts make it far larger than what is in memory. */
export class ItemCount {
  #items = 0;
  add(): void {
    if (++this.#items > MAX_ITEMS) throw new TemplateError(`a value has more than ${MAX_ITEMS} parts.`);
  }
}

/** Stops growth (doubling, joins, replacements) right where it happens. */
export function bounded(text: string): string {
  if (text.length > MAX_TEXT) throw new TemplateError(`the text is longer than ${MAX_TEXT} characters.`);
  return text;
}
