/**
 * Special tokens that a client writes into a message must stay text: `<|im_end|>` in a user's content may not end the turn.
 *
 * Before a template sees client strings, a mark (a private-use character that occurs nowhere in the input) is put inside
 * every special token in them, and behind an unfinished one at a string's end, which the next string could complete.
 * The rendered text is then split at unmarked special tokens, all of which the template wrote, and the marks are taken
 * out of the pieces between. A template that compares, splits or measures content sees a difference only where the
 * content holds a special token.
 */

export type Json = unknown;

const PRIVATE_USE = /[\ue000-\uf8ff]/g;
const FIRST_MARK = 0xe000;
const LAST_MARK = 0xf8ff;

export class SpecialText {
  readonly #root: FoldedNode = { next: new Map(), ends: false };
  readonly #prefixes = new Set<string>();
  readonly #longestPrefix: number;

  /** `tokens`: the texts of the special tokens. ASCII letter case is ignored, since a template may change it. */
  constructor(tokens: readonly string[]) {
    const texts = tokens.filter((token) => token.length > 1);
    let longest = 0;
    for (const text of texts) {
      this.#add(text);
      for (let length = 1; length < text.length; length++) this.#addPrefix(text.slice(0, length));
      longest = Math.max(longest, text.length - 1);
    }
    this.#longestPrefix = longest;
  }

  #add(text: string): void {
    let node = this.#root;
    for (let i = 0; i < text.length; i++) {
      const unit = fold(text.charCodeAt(i));
      const child = node.next.get(unit) ?? { next: new Map(), ends: false };
      node.next.set(unit, child);
      node = child;
    }
    node.ends = true;
  }

  /** Plain words (keys, roles, types) are compared by templates and begin no special token that a client could split. */
  #addPrefix(prefix: string): void {
    if (!/^\w*$/.test(prefix)) this.#prefixes.add(prefix.toLowerCase());
  }

  /** The string with marks, or the same string when it needs none. */
  mark(text: string, mark: string): string {
    const end = this.#openEnd(text);
    return this.#markWhole(end === -1 ? text : text.slice(0, end) + mark + text.slice(end), mark);
  }

  /** A mark behind the first character of every special token, overlapping ones included. */
  #markWhole(text: string, mark: string): string {
    let result = '';
    let from = 0;
    for (let at = 0; at < text.length; at++) {
      if (!this.#startsAt(text, at)) continue;
      const width = (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;
      result += text.slice(from, at + width) + mark;
      from = at + width;
    }
    return from === 0 ? text : result + text.slice(from);
  }

  #startsAt(text: string, start: number): boolean {
    let node: FoldedNode | undefined = this.#root;
    for (let i = start; node; i++) {
      if (node.ends) return true;
      node = i < text.length ? node.next.get(fold(text.charCodeAt(i))) : undefined;
    }
    return false;
  }

  /** Where an unfinished special token at the end of the text ends (templates trim, so before trailing space); -1 = none. */
  #openEnd(text: string): number {
    const end = text.trimEnd().length;
    for (let length = Math.min(this.#longestPrefix, end); length > 0; length--) {
      if (this.#prefixes.has(text.slice(end - length, end).toLowerCase())) return end;
    }
    return -1;
  }
}

interface FoldedNode {
  next: Map<number, FoldedNode>;
  ends: boolean;
}

function fold(unit: number): number {
  return unit >= 0x41 && unit <= 0x5a ? unit + 0x20 : unit;
}

/** Applies `change` to every string in a JSON value, keys of objects included. */
export function mapStrings(value: Json, change: (text: string) => string): Json {
  if (typeof value === 'string') return change(value);
  if (Array.isArray(value)) return value.map((item) => mapStrings(item, change));
  if (typeof value !== 'object' || value === null || value instanceof Number) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [change(key), mapStrings(item, change)]));
}

/** `count` private-use characters that none of the values and texts holds, or null when there are not enough. */
export function unusedMarks(values: Json, texts: readonly string[], count: number): string[] | null {
  const used = new Set<string>();
  const collect = (text: string): string => {
    for (const char of text.match(PRIVATE_USE) ?? []) used.add(char);
    return text;
  };
  mapStrings(values, collect);
  texts.forEach(collect);
  const marks: string[] = [];
  for (let code = FIRST_MARK; code <= LAST_MARK && marks.length < count; code++) {
    const char = String.fromCharCode(code);
    if (!used.has(char)) marks.push(char);
  }
  return marks.length === count ? marks : null;
}
