/** Python's string methods and the filters built on them, where @huggingface/jinja lacks them or differs. */
import type { Value } from './jinja.ts';
import { TemplateError } from './errors.ts';
import { bounded, box, boxArray, isArray, isString, toText } from './values.ts';

/** What str.strip() and str.split() call whitespace: not JavaScript's set. */
const SPACE = '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const LEADING = new RegExp(`^[${SPACE}]+`);
const TRAILING = new RegExp(`[${SPACE}]$`);

export function strip(text: string, chars: string | null, side: 'left' | 'right' | 'both'): string {
  let start = 0;
  let end = text.length;
  const drop = chars === null ? null : new Set(chars);
  const dropped = (char: string): boolean => (drop ? drop.has(char) : TRAILING.test(char));
  if (side !== 'right') {
    if (!drop) start = LEADING.exec(text)?.[0].length ?? 0;
    else while (start < end && dropped(text[start] ?? '')) start++;
  }
  if (side !== 'left') while (end > start && dropped(text[end - 1] ?? '')) end--;
  return text.slice(start, end);
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

function splitRight(source: string, separator: string, most: number): string[] {
  if (separator === '') throw new TemplateError('empty separator');
  const parts = source.split(separator);
  if (most < 0 || parts.length <= most + 1) return parts;
  const head = parts.slice(0, parts.length - most).join(separator);
  return [head, ...parts.slice(parts.length - most)];
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

function split(source: string, args: Value[]): Value {
  const separator = optionalText(args[0], 'split');
  const most = limit(args[1]);
  if (separator === null) return box(splitSpace(source, most));
  if (separator === '') throw new TemplateError('empty separator');
  const parts = source.split(separator);
  const kept = most >= 0 && parts.length > most ? [...parts.slice(0, most), parts.slice(most).join(separator)] : parts;
  return box(kept);
}

export function joinTexts(items: Value, separator: string): Value {
  const list = isArray(items) ? items.value.map(toText) : isString(items) ? [...items.value] : null;
  if (!list) throw new TemplateError(`cannot join a ${items.type}.`);
  return box(bounded(list.join(separator)));
}

/** Methods by name; keyword arguments are left to the library. */
export const STRING_METHODS: Readonly<Record<string, (self: string, args: Value[]) => Value>> = {
  strip: (self, [chars]) => box(strip(self, optionalText(chars, 'strip'), 'both')),
  lstrip: (self, [chars]) => box(strip(self, optionalText(chars, 'lstrip'), 'left')),
  rstrip: (self, [chars]) => box(strip(self, optionalText(chars, 'rstrip'), 'right')),
  split,
  rsplit: (self, args) => {
    const separator = optionalText(args[0], 'rsplit');
    return separator === null ? box(splitSpace(self, -1)) : box(splitRight(self, separator, limit(args[1])));
  },
  splitlines: (self) => box(self === '' ? [] : self.replace(/(\r\n|[\n\r])$/, '').split(/\r\n|[\n\r]/)),
  join: (self, [items]) => joinTexts(items ?? boxArray([]), self),
  capitalize: (self) => box(capitalize(self)),
  title: (self) => box(title(self)),
  find: (self, [part]) => box(self.indexOf(text(part, 'find'))),
  rfind: (self, [part]) => box(self.lastIndexOf(text(part, 'rfind'))),
  count: (self, [part]) => box(self.split(text(part, 'count')).length - 1),
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
  isspace: (self) => box(self !== '' && strip(self, null, 'both') === ''),
  isupper: (self) => box(self === self.toUpperCase() && self !== self.toLowerCase()),
  islower: (self) => box(self === self.toLowerCase() && self !== self.toUpperCase()),
};
