/** Filters where @huggingface/jinja lacks one or differs from jinja2; all others go to the library. */
import type { Value } from './jinja.ts';
import { TemplateError } from './errors.ts';
import { capitalize, joinTexts, strip } from './strings.ts';
import { jsonOptions, toJson } from './tojson.ts';
import { bounded, box, boxArray, isArray, isNumber, isObject, isString, isUndefined, toText } from './values.ts';

export interface Arguments {
  positional: Value[];
  keyword: Map<string, Value>;
}

/** undefined = not for this kind of operand: the library decides. */
type Filter = (operand: Value, args: Arguments) => Value | undefined;

const NONE: Arguments = { positional: [], keyword: new Map() };

function argument(args: Arguments, index: number, name: string): Value | undefined {
  return args.positional[index] ?? args.keyword.get(name);
}

function trim(operand: Value, args: Arguments): Value {
  const chars = argument(args, 0, 'chars');
  if (chars && !isString(chars)) throw new TemplateError('trim: chars must be a string.');
  return box(strip(toText(operand), chars ? chars.value : null, 'both'));
}

function length(operand: Value): Value | undefined {
  if (isUndefined(operand)) return box(0);
  return isString(operand) ? box([...operand.value].length) : undefined;
}

function list(operand: Value): Value | undefined {
  if (isString(operand)) return box([...operand.value]);
  if (isObject(operand)) return box([...operand.value.keys()]);
  return isUndefined(operand) ? boxArray([]) : undefined;
}

function defaultTo(operand: Value, args: Arguments): Value {
  const evenFalse = argument(args, 1, 'boolean')?.__bool__().value === true;
  const missing = isUndefined(operand) || (evenFalse && !operand.__bool__().value);
  return missing ? (argument(args, 0, 'default_value') ?? box('')) : operand;
}

/** `a.b` is a member of a member. */
function member(item: Value, path: Value): Value {
  return toText(path)
    .split('.')
    .reduce((value, name) => (isObject(value) ? value.value.get(name) : undefined) ?? box(undefined), item);
}

function join(operand: Value, args: Arguments): Value | undefined {
  const separator = argument(args, 0, 'd') ?? args.keyword.get('separator');
  const attribute = argument(args, 1, 'attribute');
  const items = isUndefined(operand) ? boxArray([]) : operand;
  const joined = attribute && isArray(items) ? boxArray(items.value.map((item) => member(item, attribute))) : items;
  return joinTexts(joined, separator ? toText(separator) : '');
}

/** As Python's int(): a text is a whole number or a float as a whole; all else is the default. */
function int(operand: Value, args: Arguments): Value | undefined {
  if (isUndefined(operand)) return undefined;
  if (operand.type === 'BooleanValue') return box(operand.value ? 1 : 0);
  const number = isNumber(operand) ? operand.value : isString(operand) ? numberOf(operand.value) : NaN;
  if (typeof number === 'bigint') return operand;
  return Number.isFinite(number) ? box(Math.trunc(number)) : (argument(args, 0, 'default') ?? box(0));
}

function numberOf(text: string): number {
  const digits = strip(text, null, 'both');
  return /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/.test(digits) ? Number(digits) : NaN;
}

/** The library takes `a.b` for a name, and would select nothing. */
function selectattr(_: Value, args: Arguments): undefined {
  const [name] = args.positional;
  if (!name || !isString(name) || !name.value.includes('.')) return undefined;
  throw new TemplateError(`selectattr: the attribute ${JSON.stringify(name.value)} is not supported.`);
}

/** `map('upper')`: a filter by name on every item; `map(attribute=...)` is the library's. */
function map(operand: Value, args: Arguments): Value | undefined {
  const [name, ...rest] = args.positional;
  if (!name || !isString(name) || !isArray(operand)) return undefined;
  const filter = SIMPLE[name.value] ?? FILTERS[name.value];
  const mapped = operand.value.map((item) => filter?.(item, { ...args, positional: rest }));
  if (mapped.includes(undefined))
    throw new TemplateError(`map: the filter ${JSON.stringify(name.value)} is not supported.`);
  return boxArray(mapped.filter((item) => item !== undefined));
}

function edge(index: number): Filter {
  return (operand) => {
    if (isString(operand)) return box([...operand.value].at(index));
    return isArray(operand) ? (operand.value.at(index) ?? box(undefined)) : undefined;
  };
}

/** Used by `map` only; on their own the library has them. */
const SIMPLE: Readonly<Record<string, Filter>> = Object.assign(Object.create(null), {
  upper: (operand: Value) => box(toText(operand).toUpperCase()),
  lower: (operand: Value) => box(toText(operand).toLowerCase()),
});

export const FILTERS: Readonly<Record<string, Filter>> = Object.assign(Object.create(null), {
  tojson: (operand: Value, args: Arguments) =>
    box(bounded(toJson(operand, jsonOptions(args.positional, args.keyword)))),
  string: (operand: Value) => box(toText(operand)),
  trim,
  length,
  count: length,
  list,
  join,
  map,
  default: defaultTo,
  d: defaultTo,
  first: edge(0),
  last: edge(-1),
  capitalize: (operand: Value) => box(capitalize(toText(operand))),
  // Unlike the method: a word begins behind these characters only.
  title: (operand: Value) => box(toText(operand).replace(/[^-\s({[<]+/g, capitalize)),
  int,
  selectattr,
  rejectattr: selectattr,
});

export function applyFilter(name: string, operand: Value, args: Arguments = NONE): Value | undefined {
  return FILTERS[name]?.(operand, args);
}
