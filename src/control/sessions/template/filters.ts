/** Filters where @huggingface/jinja lacks one or differs from jinja2; all others go to the library. */
import type { Value } from './jinja.ts';
import { TemplateError } from './errors.ts';
import { capitalize, joinTexts, strip } from './strings.ts';
import { jsonOptions, toJson } from './tojson.ts';
import { bounded, box, boxArray, isArray, isObject, isString, isUndefined, toText } from './values.ts';

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

function join(operand: Value, args: Arguments): Value | undefined {
  if (argument(args, 1, 'attribute')) return undefined;
  const separator = argument(args, 0, 'd') ?? args.keyword.get('separator');
  return joinTexts(isUndefined(operand) ? boxArray([]) : operand, separator ? toText(separator) : '');
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
});

export function applyFilter(name: string, operand: Value, args: Arguments = NONE): Value | undefined {
  return FILTERS[name]?.(operand, args);
}
