/** Filters where @huggingface/jinja lacks one or differs from jinja2; all others go to the library. */
import type { Value } from './jinja.ts';
import { BUILTIN_FILTERS } from './builtin-filters.ts';
import { TemplateError } from './errors.ts';
import { argument, isTrue, iterated, member, numberOf, rankOf, type Arguments, type Filter } from './filter-parts.ts';
import { likeOperand } from './markup.ts';
import { capitalize, joinTexts, replaced, strip } from './strings.ts';
import { jsonOptions, toJson } from './tojson.ts';
import { compare } from './operators.ts';
import { passes } from './value-tests.ts';
import {
  bounded,
  box,
  boxArray,
  boxInteger,
  boxItems,
  boxKey,
  isArray,
  isEqual,
  isNumber,
  isNumeric,
  isObject,
  isString,
  isUndefined,
  toText,
  type Key,
} from './values.ts';

const NONE: Arguments = { positional: [], keyword: new Map() };

function trim(operand: Value, args: Arguments): Value {
  const chars = argument(args, 0, 'chars');
  if (chars && !isString(chars)) throw new TemplateError('trim: chars must be a string.');
  return likeOperand(operand, box(strip(toText(operand), chars ? chars.value : null, 'both')));
}

function length(operand: Value): Value | undefined {
  if (isUndefined(operand)) return box(0);
  if (isArray(operand)) return box(operand.value.length);
  if (isObject(operand)) return box(operand.value.size);
  return isString(operand) ? box([...operand.value].length) : undefined;
}

function list(operand: Value): Value | undefined {
  if (isString(operand)) return box([...operand.value]);
  if (isObject(operand)) return boxArray([...operand.value.keys()].map(boxKey));
  if (isArray(operand)) return boxArray(operand.value);
  return isUndefined(operand) ? boxArray([]) : undefined;
}

function defaultTo(operand: Value, args: Arguments): Value {
  const evenFalse = isTrue(argument(args, 1, 'boolean'));
  const missing = isUndefined(operand) || (evenFalse && !operand.__bool__().value);
  return missing ? (argument(args, 0, 'default_value') ?? box('')) : operand;
}

function join(operand: Value, args: Arguments): Value | undefined {
  const separator = argument(args, 0, 'd') ?? args.keyword.get('separator');
  const attribute = argument(args, 1, 'attribute');
  const items = isUndefined(operand) ? boxArray([]) : operand;
  const joined = attribute ? boxArray(iterated(items).map((item) => member(item, attribute))) : items;
  return joinTexts(joined, separator ? toText(separator) : '');
}

/** The library replaces in texts that are no part of a list. */
function replace(operand: Value, args: Arguments): Value {
  const [from, to] = [argument(args, 0, 'old'), argument(args, 1, 'new')];
  if (!from || !to) throw new TemplateError('replace: takes what is replaced and by what.');
  const most = argument(args, 2, 'count');
  const count = most && isNumeric(most) ? Number(most.value) : -1;
  return box(replaced(toText(operand), toText(from), toText(to), count));
}

/** As Python's int(): a text is a whole number or a float as a whole; all else is the default. */
function int(operand: Value, args: Arguments): Value | undefined {
  if (isUndefined(operand)) return undefined;
  const base = argument(args, 1, 'base');
  if (base && !isEqual(base, box(10))) throw new TemplateError('int: base must be 10.');
  if (operand.type === 'BooleanValue') return box(operand.value ? 1 : 0);
  const number = isNumber(operand) ? operand.value : isString(operand) ? numberOf(operand.value) : NaN;
  if (typeof number === 'bigint') return operand;
  return Number.isFinite(number) ? boxInteger(BigInt(Math.trunc(number))) : (argument(args, 0, 'default') ?? box(0));
}

/** select, reject and, by an attribute of each item, selectattr and rejectattr. Without a test: what is true. */
function chosen(keep: boolean, byAttribute: boolean): Filter {
  return (operand, { positional }) => {
    const [name, ...others] = byAttribute ? positional.slice(1) : positional;
    const test = (value: Value) => (name ? holds(toText(name), value, others) : value.__bool__().value);
    const [path] = positional;
    if (byAttribute && !path) throw new TemplateError('selectattr: the attribute is missing.');
    const subject = (item: Value): Value => (byAttribute && path ? member(item, path) : item);
    return boxArray(iterated(operand).filter((item) => test(subject(item)) === keep));
  };
}

/** The smallest or the largest item, texts in lower case unless asked otherwise; undefined where there is none. */
function extreme(sign: 1 | -1): Filter {
  return (operand, args) => {
    const exact = isTrue(argument(args, 0, 'case_sensitive'));
    const path = argument(args, 1, 'attribute');
    const rank = (item: Value): Value => rankOf(path ? member(item, path) : item, exact);
    const best = (a: Value, b: Value): Value => (sign * compare(rank(b), rank(a)) > 0 ? b : a);
    const [first, ...rest] = iterated(operand);
    return first ? rest.reduce(best, first) : box(undefined);
  };
}

/** A dictionary's entries by key or by value, texts in lower case unless asked otherwise. */
function dictsort(operand: Value, args: Arguments): Value | undefined {
  if (!isObject(operand)) return undefined;
  const exact = isTrue(argument(args, 0, 'case_sensitive'));
  const by = toText(argument(args, 1, 'by') ?? box('key'));
  if (by !== 'key' && by !== 'value') throw new TemplateError("dictsort: by must be 'key' or 'value'.");
  const sign = isTrue(argument(args, 2, 'reverse')) ? -1 : 1;
  const rank = ([key, value]: [Key, Value]): Value => rankOf(by === 'value' ? value : boxKey(key), exact);
  return boxItems(new Map([...operand.value].sort((a, b) => sign * compare(rank(a), rank(b)))));
}

function items(operand: Value): Value | undefined {
  if (isUndefined(operand)) return boxArray([]);
  return isObject(operand) ? boxItems(operand.value) : undefined;
}

/** `map('upper')`: a filter by name on every item; `map(attribute='a.b')`: what each has there. */
function map(operand: Value, args: Arguments): Value | undefined {
  const [name, ...rest] = args.positional;
  const path = args.keyword.get('attribute');
  if (!name && path) {
    const otherwise = args.keyword.get('default');
    return boxArray(iterated(operand).map((item) => member(item, path, otherwise)));
  }
  if (!name || !isString(name)) return undefined;
  const filter = FILTERS[name.value];
  const mapped = iterated(operand).map((item) => filter?.(item, { ...args, positional: rest }));
  if (mapped.includes(undefined))
    throw new TemplateError(`map: the filter ${JSON.stringify(name.value)} is not supported.`);
  return boxArray(mapped.filter((item) => item !== undefined));
}

function edge(index: number): Filter {
  return (operand) => {
    if (isString(operand)) return box([...operand.value].at(index));
    if (isUndefined(operand)) return operand;
    if (isObject(operand)) return [...operand.value.keys()].map(boxKey).at(index) ?? box(undefined);
    return isArray(operand) ? (operand.value.at(index) ?? box(undefined)) : undefined;
  };
}

export const FILTERS: Readonly<Record<string, Filter>> = Object.assign(Object.create(null), {
  tojson: (operand: Value, args: Arguments) =>
    box(bounded(toJson(operand, jsonOptions(args.positional, args.keyword)))),
  string: (operand: Value) => (isString(operand) ? operand : box(toText(operand))),
  upper: (operand: Value) => likeOperand(operand, box(toText(operand).toUpperCase())),
  lower: (operand: Value) => likeOperand(operand, box(toText(operand).toLowerCase())),
  trim,
  length,
  count: length,
  list,
  join,
  map,
  replace,
  default: defaultTo,
  d: defaultTo,
  first: edge(0),
  last: edge(-1),
  capitalize: (operand: Value) => box(capitalize(toText(operand))),
  // Unlike the method: a word begins behind these characters only.
  title: (operand: Value) => box(toText(operand).replace(/[^-\s({[<]+/g, capitalize)),
  int,
  select: chosen(true, false),
  reject: chosen(false, false),
  selectattr: chosen(true, true),
  rejectattr: chosen(false, true),
  max: extreme(1),
  min: extreme(-1),
  items,
  dictsort,
  ...BUILTIN_FILTERS,
});

/** A test; that for the names of filters is not among the others, which know none. */
export function holds(name: string, value: Value, args: readonly Value[]): boolean {
  if (name !== 'filter' || args.length > 0) return passes(name, value, args);
  return isString(value) && Object.hasOwn(FILTERS, value.value);
}

export function applyFilter(name: string, operand: Value, args: Arguments = NONE): Value | undefined {
  return FILTERS[name]?.(operand, args);
}
