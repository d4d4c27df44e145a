/** Finds special tokens in a text: leftmost, then longest, as tokenizer.json's added tokens are matched. */
import type { AddedToken } from './tokenizer-files.ts';

interface TrieNode {
  next: Map<number, TrieNode>;
  token: AddedToken | null;
}

export type Piece = { kind: 'text'; text: string; atStart: boolean } | { kind: 'token'; id: number };

/** Unicode's, as the original has it: JavaScript's \s has U+FEFF as well and lacks U+0085. */
const SPACE = /\p{White_Space}/u;

/** Where the white space before `at` begins. */
function endOfWords(text: string, from: number, at: number): number {
  let end = at;
  while (end > from && SPACE.test(text[end - 1] ?? '')) end--;
  return end;
}

/** Where the white space from `at` on ends. */
function startOfWords(text: string, at: number): number {
  let start = at;
  while (start < text.length && SPACE.test(text[start] ?? '')) start++;
  return start;
}

export class SpecialSplitter {
  readonly #root: TrieNode = { next: new Map(), token: null };

  constructor(tokens: readonly AddedToken[]) {
    for (const token of tokens) {
      let node = this.#root;
      for (let i = 0; i < token.content.length; i++) {
        const unit = token.content.charCodeAt(i);
        const child = node.next.get(unit) ?? { next: new Map(), token: null };
        node.next.set(unit, child);
        node = child;
      }
      node.token = token;
    }
  }

  split(text: string): Piece[] {
    const pieces: Piece[] = [];
    let from = 0;
    let at = 0;
    const pushText = (end: number): void => {
      if (end > from) pieces.push({ kind: 'text', text: text.slice(from, end), atStart: from === 0 });
    };
    while (at < text.length) {
      const token = this.#match(text, at);
      if (!token) {
        at++;
        continue;
      }
      // A token may take the white space around it (lstrip, rstrip), but no other token, which may be of white space as well.
      pushText(token.lstrip ? endOfWords(text, from, at) : at);
      pieces.push({ kind: 'token', id: token.id });
      at += token.content.length;
      from = Math.max(from, token.rstrip ? startOfWords(text, at) : at);
    }
    pushText(text.length);
    return pieces;
  }

  #match(text: string, start: number): AddedToken | null {
    let node: TrieNode | undefined = this.#root;
    let found: AddedToken | null = null;
    for (let i = start; node; i++) {
      if (node.token) found = node.token;
      node = i < text.length ? node.next.get(text.charCodeAt(i)) : undefined;
    }
    return found;
  }
}
