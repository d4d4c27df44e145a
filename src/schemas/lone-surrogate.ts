/** Written as UTF-8 it can only be an escape. */
const ESCAPE = /\\u[dD][89a-fA-F]/;

/** `text`: the JSON of `value`. A `\ud800` alone has no UTF-8: it would silently become another character in a prompt or the database. */
export function hasLoneSurrogate(text: string, value: unknown): boolean {
  return ESCAPE.test(text) && holdsOne(value);
}

function holdsOne(value: unknown): boolean {
  if (typeof value === 'string') return /\p{Surrogate}/u.test(value);
  if (typeof value !== 'object' || value === null) return false;
  return Object.entries(value).some(([key, item]) => holdsOne(key) || holdsOne(item));
}
