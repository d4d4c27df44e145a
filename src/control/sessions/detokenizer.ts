/** Token ids -> text, incrementally: bytes go through a streaming UTF-8 decoder, so a split character is never damaged. */
import type { TokenTable } from './token-table.ts';

export interface DetokenizerOptions {
  skipSpecialTokens: boolean;
  /** The text has nothing before it: the tokenizer's rule for a leading space applies. */
  startsText: boolean;
}

export class Detokenizer {
  readonly #table: TokenTable;
  readonly #skipSpecial: boolean;
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  #stripSpace: boolean;

  constructor(table: TokenTable, options: DetokenizerOptions) {
    this.#table = table;
    this.#skipSpecial = options.skipSpecialTokens;
    this.#stripSpace = options.startsText && table.stripsLeadingSpace;
  }

  /** The characters that this token completes; bytes of an unfinished one are kept. */
  push(id: number): string {
    if (this.#skipSpecial && this.#table.isSpecial(id)) return '';
    const bytes = this.#table.bytes(id);
    if (bytes.length === 0) return '';
    const strips = this.#stripSpace && bytes[0] === 0x20;
    this.#stripSpace = false;
    return this.#decoder.decode(strips ? bytes.subarray(1) : bytes, { stream: true });
  }

  /** What was kept and will not be completed any more: U+FFFD, or nothing. */
  flush(): string {
    return this.#decoder.decode();
  }
}

export function decodeAll(table: TokenTable, ids: Iterable<number>, options: DetokenizerOptions): string {
  return decodePieces(table, ids, options).join('');
}

/** The text that each id brings. */
export function decodePieces(table: TokenTable, ids: Iterable<number>, options: DetokenizerOptions): string[] {
  const detokenizer = new Detokenizer(table, options);
  const pieces = Array.from(ids, (id) => detokenizer.push(id));
  const last = pieces.pop();
  return last === undefined ? [] : [...pieces, last + detokenizer.flush()];
}
