/**
 * JSON whose numbers keep what JavaScript's lose, so that a prompt shows them as Python would: a float without a fraction (`1.0`, `1e5`) is a
 * boxed number, an integer beyond 2^53 a bigint. Threads hand both on as they are. JSON.stringify throws at a bigint: writeJson does not.
 */
import { randomBytes } from 'node:crypto';

/** Python's own bound: reading digits costs quadratic time. */
const MAX_DIGITS = 4300;
/** Where a string begins is no place for a number. */
const QUOTE_OR_NUMBER = /"|-?\d[\d.eE+-]*/g;
/** What JavaScript's numbers may change. */
const DELICATE = /\d[.eE]|\d{16}/;
/** No text that a client or a model writes begins with it. */
const TAG = `number:${randomBytes(16).toString('hex')}:`;
const TAGGED_TEXT = new RegExp(`"${TAG}([^"]*)"`, 'g');

/** JSON.parse with exact numbers. Throws SyntaxError, also for an integer of more than MAX_DIGITS digits. */
export function parseJsonNumbers(text: string): unknown {
  // The text must be JSON before it is rewritten, so that the rewriting cannot make JSON of something else.
  const plain: unknown = JSON.parse(text);
  const tagged = tagNumbers(text);
  return tagged === text ? plain : fromTagged(JSON.parse(tagged));
}

/** JSON.stringify; exact numbers are written as such. */
export function writeJson(value: unknown): string {
  return untagText(JSON.stringify(toTagged(value)));
}

/** Whether JavaScript's number would lose something of a JSON number. */
export function isDelicate(token: string): boolean {
  const value = Number(token);
  return /[.eE]/.test(token) ? Number.isInteger(value) : !Number.isSafeInteger(value);
}

/** JSON with delicate numbers as tagged strings: what JSON.parse makes of it goes through fromTagged. `text` must be JSON. */
export function tagNumbers(text: string): string {
  if (!DELICATE.test(text)) return text;
  const pieces: string[] = [];
  const tokens = new RegExp(QUOTE_OR_NUMBER);
  let from = 0;
  for (let match = tokens.exec(text); match; match = tokens.exec(text)) {
    const [token] = match;
    if (token === '"') tokens.lastIndex = stringEnd(text, match.index);
    else if (isDelicate(token)) {
      pieces.push(text.slice(from, match.index), JSON.stringify(TAG + token));
      from = tokens.lastIndex;
    }
  }
  return from === 0 ? text : pieces.join('') + text.slice(from);
}

/** Behind the string that begins at `start`, of text that is JSON. By hand: a pattern's stack does not hold a string of megabytes. */
export function stringEnd(text: string, start: number): number {
  for (let at = text.indexOf('"', start + 1); at !== -1; at = text.indexOf('"', at + 1)) {
    let before = at;
    while (text[before - 1] === '\\') before--;
    if ((at - before) % 2 === 0) return at + 1;
  }
  return text.length;
}

export function fromTagged(value: unknown): unknown {
  return mapLeaves(value, (leaf) =>
    typeof leaf === 'string' && leaf.startsWith(TAG) ? exactNumber(leaf.slice(TAG.length)) : leaf,
  );
}

/** For JSON.stringify, whose text then goes through untagText. */
export function toTagged(value: unknown): unknown {
  return mapLeaves(value, (leaf) => {
    if (typeof leaf === 'bigint') return `${TAG}${leaf}`;
    // JSON.stringify would make null of it.
    if (leaf === Infinity || leaf === -Infinity) return TAG + floatText(leaf);
    return leaf instanceof Number ? TAG + floatText(leaf.valueOf()) : leaf;
  });
}

export function untagText(text: string): string {
  return text.replace(TAGGED_TEXT, '$1');
}

function exactNumber(source: string): unknown {
  if (/[.eE]/.test(source)) return Number.isFinite(Number(source)) ? new Number(Number(source)) : Number(source);
  if (source.length > MAX_DIGITS) throw new SyntaxError(`an integer has more than ${MAX_DIGITS} digits`);
  return BigInt(source);
}

/** Of a whole number: `1.0`, `-0.0`, `1e+21`; of one that was beyond doubles, another that is. */
function floatText(value: number): string {
  if (!Number.isFinite(value)) return value < 0 ? '-1e999' : '1e999';
  const text = Object.is(value, -0) ? '-0' : String(value);
  return text.includes('e') ? text : `${text}.0`;
}

/** Keys are kept; what needs no change is not copied. */
function mapLeaves(value: unknown, change: (leaf: unknown) => unknown): unknown {
  if (typeof value !== 'object' || value === null || value instanceof Number) return change(value);
  if (Array.isArray(value)) {
    const items = value.map((item) => mapLeaves(item, change));
    return items.some((item, index) => item !== value[index]) ? items : value;
  }
  const entries = Object.entries(value).map(([key, item]) => [key, mapLeaves(item, change)] as const);
  const changed = entries.some(([key, item]) => item !== (value as Record<string, unknown>)[key]);
  return changed ? Object.fromEntries(entries) : value;
}
