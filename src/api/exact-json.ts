/**
 * JSON as clients send it: bounded in depth, in the number of its values and keys, well-formed in its strings, and exact in its
 * integers.
 *
 * JSON.parse rounds integers beyond 2^53. One scan finds them; only then the text is parsed a second time with those
 * tokens quoted behind a mark that no client can know, and they become bigints. Schemas and what templates show keep more
 * (`1.0`): the fields that hold such numbers are parsed once more by themselves, for withExactNumbers.
 */
import { randomBytes } from 'node:crypto';
import { isDelicate, parseJsonNumbers } from '../control/json-numbers.ts';
import { hasLoneSurrogate } from '../schemas/lone-surrogate.ts';
import { isPlainObject } from '../schemas/plain-object.ts';
import { shorten } from '../schemas/shorten.ts';
import { ApiError } from './errors.ts';

const MAX_DEPTH = 128;
/** Texts (keys too), objects and arrays, and commas below lists of ids: what costs time to parse, to hand on and to render. */
const MAX_VALUES = 1_048_576;
/** Lists of ids stand here or above: `{"prompt": [[1, 2], [3]]}`. Numbers cost next to nothing. */
const ID_DEPTH = 3;
/** Each key that JSON.parse has not seen yet takes it some microseconds: a body of nothing else would hold up everybody for ten seconds. */
const MAX_KEYS = 32_768;
/** Longer digit strings stay numbers (Infinity at worst): reading them as bigints would cost quadratic time. */
const MAX_INTEGER_DIGITS = 40;
const SAFE_DIGITS = 15;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const MINUS = 0x2d;
const COMMA = 0x2c;
const COLON = 0x3a;

const MARK = `int64:${randomBytes(16).toString('hex')}:`;

type Span = [start: number, end: number];

/** Top-level fields that reach a template or a grammar as they were written. */
const SHOWN: ReadonlySet<string> = new Set([
  'messages',
  'tools',
  'documents',
  'chat_template_kwargs',
  'response_format',
  'structured_outputs',
  'text',
  'output_config',
  'output_format',
]);
/** Of a SHOWN field with every character escaped, and some. */
const LONGEST_KEY = 128;
const shownFields = new WeakMap<object, Record<string, unknown>>();

/** `body`: what has been checked of `raw`, which parseExactJson gave: `tools` and their like with numbers as in json-numbers.ts. */
export function withExactNumbers<T extends object>(body: T, raw: unknown): T {
  const exact = Object.entries(shownFields.get(raw as object) ?? {}).filter(([name]) => Object.hasOwn(body, name));
  return exact.length > 0 ? { ...body, ...Object.fromEntries(exact) } : body;
}

/** Integers beyond 2^53 are bigints under the given top-level names; elsewhere they are rounded as JSON.parse does. */
export function parseExactJson(text: string, exactFields: ReadonlySet<string>): unknown {
  const { unsafe, shown } = scan(text);
  const value = parseIntegers(text, unsafe, exactFields);
  if (shown.size > 0 && isPlainObject(value)) {
    const fields = [...shown].map(([name, [start, end]]) => [name, parse(text.slice(start, end), parseJsonNumbers)]);
    shownFields.set(value, Object.fromEntries(fields) as Record<string, unknown>);
  }
  return value;
}

function parseIntegers(text: string, unsafe: Span[], exactFields: ReadonlySet<string>): unknown {
  const plain = parse(text);
  if (hasLoneSurrogate(text, plain)) {
    throw new ApiError('invalid_body', 'A string in the body has a lone surrogate.');
  }
  if (unsafe.length === 0) return plain;
  const exact = JSON.parse(quoteSpans(text, unsafe), (_key, value: unknown) =>
    typeof value === 'string' && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value,
  ) as unknown;
  return roundIntegers(exact, exactFields);
}

function roundIntegers(value: unknown, exactKeys: ReadonlySet<string> = new Set()): unknown {
  if (typeof value === 'bigint') return Number(value);
  if (Array.isArray(value)) return value.map((item) => roundIntegers(item));
  if (typeof value !== 'object' || value === null) return value;
  for (const [key, item] of Object.entries(value)) {
    if (typeof item !== 'bigint' && (typeof item !== 'object' || item === null)) continue;
    if (exactKeys.has(key) && typeof item === 'bigint') continue;
    // defineProperty: assigning to an own `__proto__` key would set the prototype.
    const rounded = roundIntegers(item);
    Object.defineProperty(value, key, { value: rounded, enumerable: true, writable: true, configurable: true });
  }
  return value;
}

function parse(text: string, read: (text: string) => unknown = JSON.parse): unknown {
  try {
    return read(text);
  } catch (error) {
    throw new ApiError('invalid_body', `The body is not valid JSON: ${(error as Error).message}`);
  }
}

interface Scan {
  /** Integers that a double cannot hold. */
  unsafe: Span[];
  /** Values of SHOWN fields that hold numbers which JavaScript's would change. */
  shown: Map<string, Span>;
}

/** Refuses deep nesting and very many values before anything recursive sees the text. */
function scan(text: string): Scan {
  const unsafe: Span[] = [];
  const shown = new ShownFields();
  let depth = 0;
  let values = 0;
  let keys = 0;
  let at = 0;
  /** Behind the last field of the top level. */
  let fieldEnd = -1;
  while (at < text.length) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) {
      countValue(++values);
      const start = at;
      at = stringEnd(text, at + 1);
      if (!isKey(text, at)) continue;
      keys++;
      if (depth === 1) shown.begin(text, start, at, fieldEnd);
      continue;
    }
    if (isDigit(code) || code === MINUS) {
      const end = numberEnd(text, at + 1);
      if (end - at > SAFE_DIGITS && isUnsafeInteger(text.slice(at, Math.min(end, at + 64)), end - at))
        unsafe.push([at, end]);
      if (depth > 1 && shown.open) shown.number(text.slice(at, end));
      at = end;
      continue;
    }
    if (code === 0x5b || code === 0x7b) {
      countValue(++values);
      depth++;
    } else if (code === 0x5d || code === 0x7d) {
      if (--depth === 0) shown.end(at);
    } else if (code === COMMA) {
      if (depth === 1) fieldEnd = at;
      if (depth > ID_DEPTH) countValue(++values);
    }
    if (depth > MAX_DEPTH) throw new ApiError('invalid_body', `The body is nested deeper than ${MAX_DEPTH} levels.`);
    at++;
  }
  if (keys > MAX_KEYS) countDifferentKeys(text);
  return { unsafe, shown: shown.fields };
}

/** Follows a scan through the top level: of several fields of one name the last counts, as for JSON.parse. */
class ShownFields {
  readonly fields = new Map<string, Span>();
  #name: string | null = null;
  #start = 0;
  #marked = false;

  /** Within the value of a SHOWN field. */
  get open(): boolean {
    return this.#name !== null;
  }

  /** A key's string, quotes included, from `start` to `end`. The field before it ended before `before`. */
  begin(text: string, start: number, end: number, before: number): void {
    this.end(before);
    const key = end - start > LONGEST_KEY ? '' : text.slice(start, end);
    const name = key.includes('\\') ? String(parse(key)) : key.slice(1, -1);
    this.#name = SHOWN.has(name) ? name : null;
    this.#start = text.indexOf(':', end) + 1;
    this.#marked = false;
  }

  /** Within the field that is open. No schema and no prompt could have one that is infinite here: JSON.stringify makes null of it. */
  number(token: string): void {
    if (isDelicate(token)) this.#marked = true;
    else if (Math.abs(Number(token)) === Infinity) {
      const message = `${this.#name}: ${shorten(token, 40)} is larger than a number may be.`;
      throw new ApiError('invalid_parameter', message, this.#name);
    }
  }

  /** The value of the field that is open, if any, ends before `end`. */
  end(end: number): void {
    if (this.#name === null) return;
    if (this.#marked) this.fields.set(this.#name, [this.#start, end]);
    else this.fields.delete(this.#name);
    this.#name = null;
  }
}

function countDifferentKeys(text: string): void {
  const keys = new Set<string>();
  let end = 0;
  for (let at = text.indexOf('"'); at >= 0; at = text.indexOf('"', end)) {
    end = stringEnd(text, at + 1);
    if (isKey(text, end)) keys.add(text.slice(at, end));
    if (keys.size <= MAX_KEYS) continue;
    throw new ApiError('invalid_body', `The body has more than ${MAX_KEYS} different keys.`);
  }
}

/** Whether the string that ends here is a key of an object. */
function isKey(text: string, end: number): boolean {
  let at = end;
  while (isSpace(text.charCodeAt(at))) at++;
  return text.charCodeAt(at) === COLON;
}

function isSpace(code: number): boolean {
  return code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09;
}

function countValue(count: number): void {
  if (count > MAX_VALUES) throw new ApiError('invalid_body', `The body has more than ${MAX_VALUES} values.`);
}

function stringEnd(text: string, from: number): number {
  let at = from;
  while (at < text.length) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) return at + 1;
    at += code === BACKSLASH ? 2 : 1;
  }
  return at;
}

function numberEnd(text: string, from: number): number {
  let at = from;
  while (at < text.length && isNumberCode(text.charCodeAt(at))) at++;
  return at;
}

/** Digits, and `+`, `-`, `.`, `E`, `e`. */
function isNumberCode(code: number): boolean {
  return isDigit(code) || code === 0x2b || code === MINUS || code === 0x2e || code === 0x45 || code === 0x65;
}

function isDigit(code: number): boolean {
  return code >= 0x30 && code <= 0x39;
}

function isUnsafeInteger(token: string, length: number): boolean {
  return length <= MAX_INTEGER_DIGITS && /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token));
}

function quoteSpans(text: string, spans: Span[]): string {
  const pieces: string[] = [];
  let from = 0;
  for (const [start, end] of spans) {
    pieces.push(text.slice(from, start), '"', MARK, text.slice(start, end), '"');
    from = end;
  }
  pieces.push(text.slice(from));
  return pieces.join('');
}
