/** Operators and subscripts of jinja2 on runtime values, where @huggingface/jinja lacks them or differs. */
import { TemplateError } from './errors.ts';
import type { Value } from './jinja.ts';
import { boxMarkup, escapedText, isMarkup } from './markup.ts';
import { printf } from './printf.ts';
import { isNamed } from './stateful.ts';
import { characters } from './strings.ts';
import { jsonOptions, toJson } from './tojson.ts';
import {
  bounded,
  box,
  boxArray,
  boxFunction,
  boxItems,
  boxKey,
  boxObject,
  boxTuple,
  isTuple,
  MAX_ITEMS,
  boxFloat,
  boxInteger,
  isArray,
  isEqual,
  isNumber,
  isNumeric,
  isObject,
  isString,
  isUndefined,
  MAX_TEXT,
  toRepr,
  type Key,
} from './values.ts';

/** As many digits as Python writes. */
const LARGEST = 10n ** 4300n;

const ORDERS = new Set(['<', '<=', '>', '>=']);
const COUNTING = new Set(['+', '-', '*', '/', '//', '%', '<', '<=', '>', '>=']);

/** Booleans are numbers to what counts. */
export function counted(operator: string, value: Value): Value {
  return value.type === 'BooleanValue' && COUNTING.has(operator) ? box(value.value ? 1 : 0) : value;
}

/** undefined = not for these operands: the library decides. */
export function operate(operator: string, left: Value, right: Value): Value | undefined {
  if (operator === '*' && (isRow(left) || isRow(right))) return repeated(left, right) ?? repeated(right, left);
  if (operator === '+' && isArray(left) && isArray(right)) return joined(left, right);
  if (operator === '+' && (isMarkup(left) || isMarkup(right)) && isString(left) && isString(right))
    return boxMarkup(bounded(escapedText(left) + escapedText(right)));
  if (operator === '+' && (isString(left) || isString(right)))
    return box(bounded(addend(left, right) + addend(right, left)));
  if (operator === '%' && isString(left)) return formatted(left, left.value, right);
  if ((operator === '/' || operator === '//') && isNumber(right) && Number(right.value) === 0)
    throw new TemplateError('division by zero');
  if (isNumber(left) && isNumber(right) && (typeof left.value === 'bigint' || typeof right.value === 'bigint'))
    return withLarge(operator, left, right);
  const areOrdered = (isString(left) && isString(right)) || (isArray(left) && isArray(right));
  if (!areOrdered || !ORDERS.has(operator)) return undefined;
  const order = compare(left, right);
  switch (operator) {
    case '<':
      return box(order < 0);
    case '<=':
      return box(order <= 0);
    case '>':
      return box(order > 0);
    case '>=':
      return box(order >= 0);
    default:
      return undefined;
  }
}

/** Python's `%` of a text. */
export function formatted(operand: Value, text: string, values: Value): Value {
  return isMarkup(operand) ? boxMarkup(printf(text, values, escapedText)) : box(printf(text, values));
}

/** Arithmetic with an integer beyond 2^53, for which the library has none. */
function withLarge(operator: string, left: Value, right: Value): Value | undefined {
  if (!['+', '-', '*', '/', '//'].includes(operator)) return undefined;
  if (operator === '/' || left.type === 'FloatValue' || right.type === 'FloatValue') {
    const [a, b] = [Number(left.value), Number(right.value)];
    if (operator === '+') return boxFloat(a + b);
    if (operator === '-') return boxFloat(a - b);
    return boxFloat(operator === '*' ? a * b : operator === '/' ? a / b : Math.floor(a / b));
  }
  const result = wholeResult(operator, BigInt(left.value as number), BigInt(right.value as number));
  if (result > LARGEST || result < -LARGEST) throw new TemplateError('an integer has more than 4300 digits.');
  return boxInteger(result);
}

function wholeResult(operator: string, a: bigint, b: bigint): bigint {
  if (operator === '+') return a + b;
  if (operator === '-') return a - b;
  if (operator === '*') return a * b;
  const rounded = a / b;
  return a % b !== 0n && a < 0n !== b < 0n ? rounded - 1n : rounded;
}

/** A call's arguments are a dictionary, whatever the client sent: who adds them to a text wants their JSON. All else fails as in Python. */
function addend(value: Value, other: Value): string {
  if (isString(value)) return value.value;
  if (isObject(value)) return toJson(value, jsonOptions([], new Map()));
  throw new TemplateError(`"+" does not work between a ${value.type} and a ${other.type}.`);
}

/** Two lists, or two tuples. */
function joined(left: Value & { value: Value[] }, right: Value & { value: Value[] }): Value {
  if (isTuple(left) !== isTuple(right)) throw new TemplateError('"+" does not work between a list and a tuple.');
  checkItems(left.value.length + right.value.length);
  const items = [...left.value, ...right.value];
  return isTuple(left) ? boxTuple(items) : boxArray(items);
}

function isRow(value: Value): boolean {
  return isString(value) || isArray(value);
}

function checkItems(count: number): void {
  if (count > MAX_ITEMS) throw new TemplateError(`a list has more than ${MAX_ITEMS} items.`);
}

/** A text, or the items of a list, so many times. */
function repeated(text: Value, times: Value): Value | undefined {
  if (!isRow(text) || times.type !== 'IntegerValue') return undefined;
  const count = Math.max(0, Number(times.value));
  if (isArray(text)) {
    checkItems(text.value.length * count);
    const items = text.value.length === 0 ? [] : Array.from({ length: count }, () => text.value).flat();
    return isTuple(text) ? boxTuple(items) : boxArray(items);
  }
  if (!isString(text)) return undefined;
  return box(text.value.length * count > MAX_TEXT ? bounded(' '.repeat(MAX_TEXT + 1)) : text.value.repeat(count));
}

/** Python's order of two numbers, two texts (by code points), or two lists or tuples (by the first items that differ): below, above or 0. */
export function compare(a: Value, b: Value): number {
  if (isNumeric(a) && isNumeric(b)) return Number(a.value) - Number(b.value);
  if (isArray(a) && isArray(b) && isTuple(a) === isTuple(b)) return compareItems(a.value, b.value);
  if (!isString(a) || !isString(b)) throw new TemplateError(`a ${a.type} and a ${b.type} have no order.`);
  let at = 0;
  while (at < a.value.length && a.value[at] === b.value[at]) at++;
  return (a.value.codePointAt(at) ?? -1) - (b.value.codePointAt(at) ?? -1);
}

function compareItems(a: Value[], b: Value[]): number {
  for (const [i, item] of a.entries()) {
    const other = b[i];
    if (!other) return 1;
    if (!isEqual(item, other)) return compare(item, other);
  }
  return a.length - b.length;
}

/** `a[b]`: the item; where there is none, a method of that name or undefined. What is undefined itself has neither. */
export function subscript(object: Value, key: Value, name = 'a value'): Value {
  if (isUndefined(object)) throw nothingOf(name, toRepr(key));
  if (key.type === 'IntegerValue' && isArray(object)) return object.value.at(Number(key.value)) ?? box(undefined);
  if (key.type === 'IntegerValue' && isString(object)) return box(characters(object.value).at(Number(key.value)));
  const entries = object.value instanceof Map ? (object.value as Map<Key, Value>) : null;
  const item = isString(key) || key.type === 'IntegerValue' ? entries?.get(key.value as Key) : undefined;
  return item ?? (isString(key) ? methodOf(object, key.value) : undefined) ?? box(undefined);
}

/** The library gives texts and lists a `length`, as JavaScript has it. */
function methodOf(object: Value, name: string): Value | undefined {
  if (name === 'length' && isRow(object)) return undefined;
  return ownMethod(object, name) ?? object.builtins.get(name);
}

/** Of dictionaries and lists, where the library has none or another: it finds texts alone in dictionaries, whose items are lists for it. */
export function ownMethod(object: Value, name: string): Value | undefined {
  if (isObject(object)) return dictionaryMethod(object.value, name);
  return isArray(object) ? listMethod(object, name) : undefined;
}

function dictionaryMethod(entries: Map<Key, Value>, name: string): Value | undefined {
  switch (name) {
    case 'get':
      return getter(entries);
    case 'items':
      return boxFunction(() => boxItems(entries));
    case 'keys':
      return boxFunction(() => boxArray([...entries.keys()].map(boxKey)));
    case 'values':
      return boxFunction(() => boxArray([...entries.values()]));
    case 'copy':
      return boxFunction(() => boxObject(new Map(entries)));
    default:
      return undefined;
  }
}

function listMethod(list: Value & { value: Value[] }, name: string): Value | undefined {
  switch (name) {
    case 'index':
      return boxFunction(([item]) => {
        const at = list.value.findIndex((other) => item !== undefined && isEqual(other, item));
        if (at === -1) throw new TemplateError('index() finds no such item.');
        return box(at);
      });
    case 'count':
      return boxFunction(([item]) => box(list.value.filter((other) => item && isEqual(other, item)).length));
    case 'copy':
      return list.type === 'TupleValue' ? undefined : boxFunction(() => boxArray([...list.value]));
    default:
      return undefined;
  }
}

function getter(entries: ReadonlyMap<Key, Value>): Value {
  return boxFunction((args) => {
    const [key, otherwise = box(null)] = args;
    if (!key || args.length > 2 || args.some(isNamed))
      throw new TemplateError('get() takes a key and perhaps what stands for it.');
    if (isObject(key) || (isArray(key) && !isTuple(key)))
      throw new TemplateError(`a ${key.type} cannot be a key of a dictionary.`);
    const found = isNumeric(key) && typeof key.value !== 'bigint' ? Number(key.value) : key.value;
    return entries.get(found as Key) ?? otherwise;
  });
}

export function nothingOf(name: string, key: string): TemplateError {
  return new TemplateError(`the chat template reads ${key} of ${name}, which is undefined.`);
}

export function contains(container: Value, item: Value): boolean {
  if (isUndefined(container)) return false;
  if (isArray(container)) return container.value.some((other) => isEqual(item, other));
  if (isString(container) && isString(item)) return container.value.includes(item.value);
  if (isObject(container))
    return (isString(item) || item.type === 'IntegerValue') && container.value.has(item.value as Key);
  throw new TemplateError(`"in" does not work between a ${item.type} and a ${container.type}.`);
}
