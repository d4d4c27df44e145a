/** What is bounded in tokens counts its text so: about as much memory. */
export const CHARS_PER_TOKEN = 4;

/** Of an object, a list or a field: about what it takes beside its text. */
const PER_VALUE = 16;

/** What a JSON value takes in memory, in characters. Without recursion: a client's value may be nested deeply. */
export function jsonWeight(value: unknown): number {
  let weight = 0;
  const left: unknown[] = [value];
  while (left.length > 0) {
    const next = left.pop();
    weight += typeof next === 'string' ? next.length + PER_VALUE : PER_VALUE;
    if (typeof next !== 'object' || next === null || ArrayBuffer.isView(next)) continue;
    for (const [key, inner] of Object.entries(next)) {
      if (!Array.isArray(next)) weight += key.length;
      left.push(inner);
    }
  }
  return weight;
}
