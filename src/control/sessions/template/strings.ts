/** Python's string methods and the filters built on them, where @huggingface/jinja lacks them or differs. */
import type { Value } from './jinja.ts';
import { TemplateError } from './errors.ts';
import {
  bounded,
  box,
  boxArray,
  boxTuple,
  isArray,
  isObject,
  isString,
  isUndefined,
  isTuple,
  MAX_TEXT,
  MAX_WIDTH,
  toText,
} from './values.ts';

/** What str.strip() and str.split() call whitespace, as a part of a class of characters: not JavaScript's set. */
export const SPACE = '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const LEADING = new RegExp(`^[${SPACE}]+`);
const TRAILING = new RegExp(`[${SPACE}]$`);

type Side = 'left' | 'right' | 'both';

/** Python's characters: a text where each is one of JavaScript's units, else a list. */
export function characters(text: string): string | string[] {
  return /[\ud800-\udfff]/.test(text) ? [...text] : text;
}

function joined(chars: string | string[]): string {
  return typeof chars === 'string' ? chars : chars.join('');
}

export function strip(text: string, chars: string | null, side: Side): string {
  if (chars !== null) return stripChars(characters(text), new Set(chars), side);
  const start = side === 'right' ? 0 : (LEADING.exec(text)?.[0].length ?? 0);
  let end = text.length;
  if (side !== 'left') while (end > start && TRAILING.test(text[end - 1] ?? '')) end--;
  return text.slice(start, end);
}

function stripChars(text: string | string[], drop: ReadonlySet<string>, side: Side): string {
  let start = 0;
  let end = text.length;
  if (side !== 'right') while (start < end && drop.has(text[start] ?? '')) start++;
  if (side !== 'left') while (end > start && drop.has(text[end - 1] ?? '')) end--;
  return joined(text.slice(start, end));
}

export function capitalize(text: string): string {
  const [first = ''] = text;
  return first.toUpperCase() + text.slice(first.length).toLowerCase();
}

function title(text: string): string {
  return text.toLowerCase().replace(/\p{L}+/gu, capitalize);
}

function optionalText(value: Value | undefined, method: string): string | null {
  if (!value || value.type === 'NullValue') return null;
  if (!isString(value)) throw new TemplateError(`${method}() takes a string.`);
  return value.value;
}

function text(value: Value | undefined, method: string): string {
  const found = optionalText(value, method);
  if (found === null) throw new TemplateError(`${method}() takes a string.`);
  return found;
}

function limit(value: Value | undefined): number {
  return value?.type === 'IntegerValue' ? Number(value.value) : -1;
}

interface Part {
  text: string;
  /** Of its first character in the whole, in characters. */
  start: number;
}

/** `self[start:end]` for methods that look there only; null where it begins behind the end. */
function within(self: string, [start, end]: (Value | undefined)[]): Part | null {
  const chars = characters(self);
  const place = (value: Value | undefined, none: number): number => {
    const at = value?.type === 'IntegerValue' ? Number(value.value) : none;
    return at < 0 ? Math.max(0, at + chars.length) : at;
  };
  const first = place(start, 0);
  return first > chars.length ? null : { text: joined(chars.slice(first, place(end, chars.length))), start: first };
}

/** Python counts characters, as slices do here. */
function find(self: string, args: (Value | undefined)[], method: 'find' | 'rfind'): Value {
  const wanted = text(args[0], method);
  const part = within(self, args.slice(1));
  const at = part?.text[method === 'find' ? 'indexOf' : 'lastIndexOf'](wanted) ?? -1;
  return box(part && at !== -1 ? part.start + characters(part.text.slice(0, at)).length : -1);
}

function count(self: string, args: (Value | undefined)[]): Value {
  const wanted = text(args[0], 'count');
  const part = within(self, args.slice(1));
  if (!part) return box(0);
  return box(wanted === '' ? characters(part.text).length + 1 : part.text.split(wanted).length - 1);
}

/** Python's replace(): `count` times from the left, always where it is negative; an empty text stands before each character and at the end. */
export function replaced(self: string, from: string, to: string, count: number): string {
  const parts = from === '' ? ['', ...self, ''] : self.split(from);
  const most = count < 0 ? parts.length - 1 : Math.min(count, parts.length - 1);
  if (most * to.length > MAX_TEXT) bounded(' '.repeat(MAX_TEXT + 1));
  return bounded(
    parts.slice(0, most + 1).join(to) +
      parts
        .slice(most + 1)
        .map((part) => from + part)
        .join(''),
  );
}

const LINE = /[^\n-\r\x1c-\x1e\x85\u2028\u2029]*(?:\r\n|[\n-\r\x1c-\x1e\x85\u2028\u2029]|$)/g;
const LINE_END = /(?:\r\n|[\n-\r\x1c-\x1e\x85\u2028\u2029])$/;

/** Python's splitlines(). */
export function lines(self: string, keepEnds: boolean): string[] {
  const found = (self.match(LINE) ?? []).filter((line) => line !== '');
  return keepEnds ? found : found.map((line) => line.replace(LINE_END, ''));
}

/** `affix` is a text or several, of which one must be there. */
function hasAffix(self: string, args: (Value | undefined)[], method: 'startsWith' | 'endsWith'): Value {
  const affixes = args[0] && isTuple(args[0]) ? args[0].value : [args[0]];
  const part = within(self, args.slice(1));
  return box(
    affixes.map((affix) => text(affix, method.toLowerCase())).some((affix) => part?.text[method](affix) === true),
  );
}

function splitRight(source: string, separator: string, most: number): string[] {
  if (separator === '') throw new TemplateError('empty separator');
  const parts = source.split(separator);
  if (most < 0 || parts.length <= most + 1) return parts;
  const head = parts.slice(0, parts.length - most).join(separator);
  return [head, ...parts.slice(parts.length - most)];
}

function splitSpaceRight(source: string, most: number): string[] {
  const parts: string[] = [];
  let rest = strip(source, null, 'right');
  while (rest !== '' && (most < 0 || parts.length < most)) {
    let start = rest.length;
    while (start > 0 && !TRAILING.test(rest[start - 1] ?? '')) start--;
    parts.push(rest.slice(start));
    rest = strip(rest.slice(0, start), null, 'right');
  }
  return rest === '' ? parts.reverse() : [...parts, rest].reverse();
}

function splitSpace(source: string, most: number): string[] {
  const parts: string[] = [];
  let rest = strip(source, null, 'left');
  const space = new RegExp(`[${SPACE}]+`);
  while (rest !== '' && (most < 0 || parts.length < most)) {
    const found = space.exec(rest);
    if (!found) break;
    parts.push(rest.slice(0, found.index));
    rest = rest.slice(found.index + found[0].length);
  }
  return rest === '' ? parts : [...parts, rest];
}

function split(source: string, args: (Value | undefined)[]): Value {
  const separator = optionalText(args[0], 'split');
  const most = limit(args[1]);
  if (separator === null) return box(splitSpace(source, most));
  if (separator === '') throw new TemplateError('empty separator');
  const parts = source.split(separator);
  const kept = most >= 0 && parts.length > most ? [...parts.slice(0, most), parts.slice(most).join(separator)] : parts;
  return box(kept);
}

export function joinTexts(items: Value, separator: string): Value {
  const list = isArray(items) ? items.value.map(toText) : isString(items) ? [...items.value] : keysOf(items);
  if (!list) throw new TemplateError(`cannot join a ${items.type}.`);
  return box(bounded(list.join(separator)));
}

function keysOf(value: Value): string[] | null {
  if (isUndefined(value)) return [];
  return isObject(value) ? [...value.value.keys()].map(String) : null;
}

/** str.format() of `{}`, `{0}` and `{name}`: attributes and formats are not here. */
function format(self: string, args: (Value | undefined)[], named: ReadonlyMap<string, Value>): Value {
  let next = 0;
  const fill = (field: string, name: string | undefined): string => {
    if (field === '{{' || field === '}}') return field.slice(1);
    if (name === undefined) throw new TemplateError(`format: the field ${JSON.stringify(field)} is not supported.`);
    const value = name === '' ? args[next++] : /^\d+$/.test(name) ? args[Number(name)] : named.get(name);
    if (!value) throw new TemplateError(`format: there is no value for ${JSON.stringify(field)}.`);
    return toText(value);
  };
  return box(bounded(self.replace(/\{\{|\}\}|\{([\p{L}\p{N}_]*)\}|\{[^{}]*\}|[{}]/gu, fill)));
}

/** Characters that lack for a width. */
function roomFor(self: string, width: Value | undefined): number {
  if (width?.type !== 'IntegerValue') throw new TemplateError('a width must be a whole number.');
  if (Number(width.value) > MAX_WIDTH) throw new TemplateError(`a width must be at most ${MAX_WIDTH}.`);
  return Math.max(0, Number(width.value) - characters(self).length);
}

function aligned(
  self: string,
  [width, fill]: (Value | undefined)[],
  before: (room: number, width: number) => number,
): Value {
  const character = fill ? text(fill, 'justify') : ' ';
  if (characters(character).length !== 1) throw new TemplateError('a text is filled up with one character.');
  const room = roomFor(self, width);
  const left = before(room, Number(width?.value));
  return box(bounded(character.repeat(left) + self + character.repeat(room - left)));
}

function separator(value: Value | undefined): string {
  const found = text(value, 'partition');
  if (found === '') throw new TemplateError('empty separator');
  return found;
}

/** What stands before a separator, itself, and what stands behind it. */
function parted(self: string, at: number, found: string, fromRight: boolean): Value {
  const whole = fromRight ? ['', '', self] : [self, '', ''];
  return boxTuple((at === -1 ? whole : [self.slice(0, at), found, self.slice(at + found.length)]).map(box));
}

/** Names of arguments, for those that may be given by name; all other keyword arguments are left to the library. */
export const STRING_PARAMETERS: Readonly<Record<string, readonly string[]>> = {
  split: ['sep', 'maxsplit'],
  rsplit: ['sep', 'maxsplit'],
  splitlines: ['keepends'],
};

/** Methods by name. */
export const STRING_METHODS: Readonly<
  Record<string, (self: string, args: (Value | undefined)[], named: ReadonlyMap<string, Value>) => Value>
> = {
  strip: (self, [chars]) => box(strip(self, optionalText(chars, 'strip'), 'both')),
  lstrip: (self, [chars]) => box(strip(self, optionalText(chars, 'lstrip'), 'left')),
  rstrip: (self, [chars]) => box(strip(self, optionalText(chars, 'rstrip'), 'right')),
  split,
  rsplit: (self, args) => {
    const separator = optionalText(args[0], 'rsplit');
    return separator === null
      ? box(splitSpaceRight(self, limit(args[1])))
      : box(splitRight(self, separator, limit(args[1])));
  },
  splitlines: (self, [keepEnds]) => box(lines(self, keepEnds?.__bool__().value === true)),
  join: (self, [items]) => joinTexts(items ?? boxArray([]), self),
  capitalize: (self) => box(capitalize(self)),
  title: (self) => box(title(self)),
  find: (self, args) => find(self, args, 'find'),
  rfind: (self, args) => find(self, args, 'rfind'),
  index: (self, args) => {
    const at = find(self, args, 'find');
    if (at.value === -1) throw new TemplateError('index() finds no such text.');
    return at;
  },
  count,
  format,
  startswith: (self, args) => hasAffix(self, args, 'startsWith'),
  endswith: (self, args) => hasAffix(self, args, 'endsWith'),
  removeprefix: (self, [part]) =>
    box(self.startsWith(text(part, 'removeprefix')) ? self.slice(text(part, '').length) : self),
  removesuffix: (self, [part]) => {
    const end = text(part, 'removesuffix');
    return box(end !== '' && self.endsWith(end) ? self.slice(0, -end.length) : self);
  },
  isdigit: (self) => box(/^\p{Nd}+$/u.test(self)),
  isnumeric: (self) => box(/^\p{N}+$/u.test(self)),
  isalpha: (self) => box(/^\p{L}+$/u.test(self)),
  isalnum: (self) => box(/^[\p{L}\p{N}]+$/u.test(self)),
  isascii: (self) => box(/^[\0-\x7f]*$/.test(self)),
  center: (self, args) => aligned(self, args, (room, width) => Math.floor(room / 2) + (room & width & 1)),
  ljust: (self, args) => aligned(self, args, () => 0),
  rjust: (self, args) => aligned(self, args, (room) => room),
  zfill: (self, [width]) => {
    const sign = /^[+-]/.exec(self)?.[0] ?? '';
    return box(sign + '0'.repeat(roomFor(self, width)) + self.slice(sign.length));
  },
  partition: (self, [part]) => parted(self, self.indexOf(separator(part)), separator(part), false),
  rpartition: (self, [part]) => parted(self, self.lastIndexOf(separator(part)), separator(part), true),
  isspace: (self) => box(self !== '' && strip(self, null, 'both') === ''),
  isupper: (self) => box(self === self.toUpperCase() && self !== self.toLowerCase()),
  islower: (self) => box(self === self.toLowerCase() && self !== self.toUpperCase()),
};
