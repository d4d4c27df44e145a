/** Filters of jinja2 that @huggingface/jinja does not have. */
import { TemplateError } from './errors.ts';
import { argument, isTrue, iterated, member, numberOf, rankOf, type Arguments, type Filter } from './filter-parts.ts';
import type { Value } from './jinja.ts';
import { compare, formatted } from './operators.ts';
import { boxMarkup, escapedText } from './markup.ts';
import { lines } from './strings.ts';
import {
  bounded,
  box,
  boxArray,
  boxFloat,
  boxInteger,
  isArray,
  isNumeric,
  isString,
  isTuple,
  boxObject,
  boxTuple,
  isUndefined,
  MAX_ITEMS,
  MAX_WIDTH,
  toText,
} from './values.ts';

/** Digits behind the point that a double can have a use for. */
const MAX_PRECISION = 20;

function whole(value: Value | undefined, otherwise: number, what: string): number {
  if (value === undefined) return otherwise;
  if (value.type === 'IntegerValue' && Number.isSafeInteger(value.value)) return value.value as number;
  throw new TemplateError(`${what} must be a whole number.`);
}

/** Python's +, of numbers and of lists. */
function add(a: Value, b: Value): Value {
  if (isArray(a) && isArray(b)) {
    if (a.value.length + b.value.length > MAX_ITEMS)
      throw new TemplateError(`a list has more than ${MAX_ITEMS} items.`);
    return boxArray([...a.value, ...b.value]);
  }
  if (!isNumeric(a) || !isNumeric(b)) throw new TemplateError(`sum: cannot add a ${b.type} to a ${a.type}.`);
  if (a.type === 'FloatValue' || b.type === 'FloatValue') return boxFloat(Number(a.value) + Number(b.value));
  return boxInteger(BigInt(a.value as number) + BigInt(b.value as number));
}

function sum(operand: Value, args: Arguments): Value {
  const path = argument(args, 0, 'attribute');
  const all = iterated(operand);
  const numbers = path && path.type !== 'NullValue' ? all.map((item) => member(item, path)) : all;
  return numbers.reduce(add, argument(args, 1, 'start') ?? box(0));
}

function round(operand: Value, args: Arguments): Value {
  if (!isNumeric(operand)) throw new TemplateError(`round: a ${operand.type} is no number.`);
  const precision = whole(argument(args, 0, 'precision'), 0, 'round: precision');
  if (precision < 0 || precision > MAX_PRECISION) {
    throw new TemplateError(`round: precision must be from 0 to ${MAX_PRECISION}.`);
  }
  const method = toText(argument(args, 1, 'method') ?? box('common'));
  const scale = 10 ** precision;
  if (method === 'ceil') return boxFloat(Math.ceil(Number(operand.value) * scale) / scale);
  if (method === 'floor') return boxFloat(Math.floor(Number(operand.value) * scale) / scale);
  if (method !== 'common') throw new TemplateError('round: method must be common, ceil or floor.');
  if (operand.type !== 'FloatValue') return boxInteger(BigInt(operand.value as number));
  return boxFloat(nearest(Number(operand.value), precision));
}

function abs(operand: Value): Value {
  if (!isNumeric(operand)) throw new TemplateError(`abs: a ${operand.type} is no number.`);
  if (operand.type === 'FloatValue') return boxFloat(Math.abs(Number(operand.value)));
  const whole = BigInt(operand.value as number);
  return boxInteger(whole < 0n ? -whole : whole);
}

/** To so many digits; from the middle between two to the even one. */
function nearest(value: number, digits: number): number {
  if (!Number.isFinite(value) || Math.abs(value) >= 1e21) return value;
  // toFixed is exact, and goes up from the middle.
  const rounded = value.toFixed(digits);
  const [, below = ''] = value.toFixed(100).split('.');
  const middle = below[digits] === '5' && /^0*$/.test(below.slice(digits + 1));
  if (!middle || /[02468]$/.test(rounded)) return Number(rounded);
  const step = BigInt(rounded.replace('.', '')) + (value < 0 ? 1n : -1n);
  return Number(`${step}e-${digits}`);
}

/** Rows of so many items, the last one filled up where there is something to fill it with. */
function batch(operand: Value, args: Arguments): Value {
  const size = whole(argument(args, 0, 'linecount'), 0, 'batch: linecount');
  if (size < 1 || size > MAX_ITEMS) throw new TemplateError(`batch: linecount must be from 1 to ${MAX_ITEMS}.`);
  const all = iterated(operand);
  const fill = argument(args, 1, 'fill_with');
  const rows: Value[][] = [];
  for (let from = 0; from < all.length; from += size) rows.push(all.slice(from, from + size));
  const last = rows.at(-1);
  if (last && fill && fill.type !== 'NullValue') while (last.length < size) last.push(fill);
  return boxArray(rows.map(boxArray));
}

function center(operand: Value, args: Arguments): Value {
  const text = toText(operand);
  const width = whole(argument(args, 0, 'width'), 80, 'center: width');
  if (width > MAX_WIDTH) throw new TemplateError(`center: width must be at most ${MAX_WIDTH}.`);
  const room = Math.max(0, width - [...text].length);
  const left = Math.floor(room / 2) + (room & width & 1);
  return box(bounded(' '.repeat(left) + text + ' '.repeat(room - left)));
}

function reverse(operand: Value): Value | undefined {
  if (isUndefined(operand)) return boxArray([]);
  return isString(operand) ? box([...operand.value].reverse().join('')) : undefined;
}

/** What an item is compared by: itself, or its attributes (`a.b`, and where several count `a,b`). */
function ranksOf(item: Value, path: Value | undefined, exact: boolean): Value[] {
  if (!path || path.type === 'NullValue') return [rankOf(item, exact)];
  return toText(path)
    .split(',')
    .map((name) => rankOf(member(item, box(name)), exact));
}

/** Items that are equal stay in their order, when it is reversed too. */
function sort(operand: Value, args: Arguments): Value {
  const sign = isTrue(argument(args, 0, 'reverse')) ? -1 : 1;
  const exact = isTrue(argument(args, 1, 'case_sensitive'));
  const path = argument(args, 2, 'attribute');
  const ranked = iterated(operand).map((item) => ({ item, ranks: ranksOf(item, path, exact) }));
  const order = (a: Value[], b: Value[]): number => {
    for (const [i, rank] of a.entries()) {
      const found = compare(rank, b[i] ?? rank);
      if (found !== 0) return found;
    }
    return 0;
  };
  return boxArray(ranked.sort((a, b) => sign * order(a.ranks, b.ranks)).map(({ item }) => item));
}

/** Equal values have equal keys. */
function keyOf(value: Value): string {
  if (isString(value)) return `text ${value.value}`;
  if (isNumeric(value)) return `number ${Number(value.value)}`;
  if (isTuple(value)) return `tuple ${value.value.map(keyOf).join()}`;
  if (typeof value.value === 'object' && value.value !== null)
    throw new TemplateError(`unique: a ${value.type} has no hash.`);
  return value.type;
}

/** The first of those that are equal, texts in any case unless asked otherwise. */
function unique(operand: Value, args: Arguments): Value {
  const exact = isTrue(argument(args, 0, 'case_sensitive'));
  const path = argument(args, 1, 'attribute');
  const seen = new Set<string>();
  const isNew = (item: Value): boolean => {
    const before = seen.size;
    return seen.add(ranksOf(item, path, exact).map(keyOf).join()).size > before;
  };
  return boxArray(iterated(operand).filter(isNew));
}

function float(operand: Value, args: Arguments): Value | undefined {
  if (isUndefined(operand)) return undefined;
  const number = isNumeric(operand) ? Number(operand.value) : isString(operand) ? numberOf(operand.value) : NaN;
  return Number.isNaN(number) && !isNumeric(operand) ? (argument(args, 0, 'default') ?? boxFloat(0)) : boxFloat(number);
}

/** Every line but the first and, unless asked for, those that are empty; the end of the text ends a line as well. */
function indent(operand: Value, args: Arguments): Value {
  const width = argument(args, 0, 'width');
  const before =
    width && isString(width)
      ? width.value
      : ' '.repeat(Math.max(0, Math.min(whole(width, 4, 'indent: width'), MAX_WIDTH + 1)));
  if (before.length > MAX_WIDTH) throw new TemplateError(`indent: width must be at most ${MAX_WIDTH}.`);
  const [first = '', ...rest] = lines(`${toText(operand)}\n`, false);
  const blank = isTrue(argument(args, 2, 'blank'));
  const shifted = rest.map((line) => (line === '' && !blank ? line : before + line));
  return box(bounded([(isTrue(argument(args, 1, 'first')) ? before : '') + first, ...shifted].join('\n')));
}

/** Groups of the items whose attribute is equal, in its order; texts in any case unless asked otherwise. */
function groupby(operand: Value, args: Arguments): Value {
  const path = argument(args, 0, 'attribute');
  if (!path) throw new TemplateError('groupby: the attribute is missing.');
  const otherwise = argument(args, 1, 'default');
  const exact = isTrue(argument(args, 2, 'case_sensitive'));
  const keyed = iterated(operand).map((item) => {
    const found = member(item, path);
    const key = isUndefined(found) ? (otherwise ?? found) : found;
    return { item, key, rank: rankOf(key, exact) };
  });
  const groups: { key: Value; rank: Value; items: Value[] }[] = [];
  for (const { item, key, rank } of keyed.sort((a, b) => compare(a.rank, b.rank))) {
    const last = groups.at(-1);
    if (last && compare(last.rank, rank) === 0) last.items.push(item);
    else groups.push({ key, rank, items: [item] });
  }
  return boxArray(groups.map(({ key, items }) => boxGroup(key, boxArray(items))));
}

/** A pair whose parts have names. */
function boxGroup(grouper: Value, list: Value): Value {
  const pair = boxTuple([grouper, list]);
  const names = pair.builtins as Map<string, Value>;
  names.set('grouper', grouper).set('list', list);
  return pair;
}

/** A text that is longer by more than the leeway is cut, at a space unless asked otherwise. */
function truncate(operand: Value, args: Arguments): Value {
  const length = whole(argument(args, 0, 'length'), 255, 'truncate: length');
  const end = toText(argument(args, 2, 'end') ?? box('...'));
  const leeway = whole(argument(args, 3, 'leeway'), 5, 'truncate: leeway');
  const room = length - [...end].length;
  if (room < 0 || leeway < 0) throw new TemplateError('truncate: length and leeway are too small.');
  const chars = isString(operand) ? [...operand.value] : null;
  if ((chars ?? iterated(operand)).length <= length + leeway) return operand;
  if (!chars) throw new TemplateError(`truncate: a ${operand.type} is no text.`);
  const head = chars.slice(0, room);
  const space = isTrue(argument(args, 1, 'killwords')) ? -1 : head.lastIndexOf(' ');
  return box((space === -1 ? head : head.slice(0, space)).join('') + end);
}

/** In so many columns, the first ones longer by one where they cannot be equal; the others filled up where there is something to do so. */
function slice(operand: Value, args: Arguments): Value {
  const count = whole(argument(args, 0, 'slices'), 0, 'slice: slices');
  if (count < 1 || count > MAX_ITEMS) throw new TemplateError(`slice: slices must be from 1 to ${MAX_ITEMS}.`);
  const all = iterated(operand);
  const fill = argument(args, 1, 'fill_with');
  const [least, longer] = [Math.floor(all.length / count), all.length % count];
  const columns: Value[][] = [];
  for (let from = 0; columns.length < count;) {
    const size = least + (columns.length < longer ? 1 : 0);
    const column = all.slice(from, from + size);
    if (fill && fill.type !== 'NullValue' && columns.length >= longer) column.push(fill);
    columns.push(column);
    from += size;
  }
  return boxArray(columns.map(boxArray));
}

function format(operand: Value, { positional, keyword }: Arguments): Value {
  if (positional.length > 0 && keyword.size > 0) throw new TemplateError('format: values come in order or by name.');
  const values = keyword.size > 0 ? boxObject(new Map(keyword)) : boxTuple(positional);
  return formatted(operand, toText(operand), values);
}

function escape(operand: Value): Value {
  return boxMarkup(bounded(escapedText(operand)));
}

export const BUILTIN_FILTERS: Readonly<Record<string, Filter>> = {
  sum,
  abs,
  round,
  batch,
  center,
  reverse,
  sort,
  unique,
  float,
  indent,
  groupby,
  truncate,
  slice,
  format,
  escape,
  e: escape,
  forceescape: (operand) => boxMarkup(bounded(escapedText(box(toText(operand))))),
  safe: (operand) => boxMarkup(toText(operand)),
  wordcount: (operand) => box([...toText(operand).matchAll(/[\p{L}\p{N}_]+/gu)].length),
};
