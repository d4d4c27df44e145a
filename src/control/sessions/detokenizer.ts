/** Token ids -> text, incrementally: bytes go through a streaming UTF-8 decoder, so a split character is never damaged. */
import { setImmediate } from 'node:timers/promises';
import type { TokenTable } from './token-table.ts';

/** Some milliseconds of work. */
const PIECE_TOKENS = 8192;
const NOTHING = new Uint8Array(0);

export interface DetokenizerOptions {
  skipSpecialTokens: boolean;
  /** Special tokens that are not skipped. */
  marks?: ReadonlySet<number>;
  /** The text has nothing before it: the tokenizer's rule for the first token applies. */
  startsText: boolean;
}

export class Detokenizer {
  readonly #table: TokenTable;
  readonly #skipSpecial: boolean;
  readonly #marks: ReadonlySet<number> | undefined;
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  #atStart: boolean;

  constructor(table: TokenTable, options: DetokenizerOptions) {
    this.#table = table;
    this.#skipSpecial = options.skipSpecialTokens;
    this.#marks = options.marks;
    this.#atStart = options.startsText;
  }

  /** The characters that this token completes; bytes of an unfinished one are kept. */
  push(id: number): string {
    const bytes = this.#shown(id);
    return bytes.length === 0 ? '' : this.#decoder.decode(bytes, { stream: true });
  }

  /** The same of many at once, which takes much less time. */
  pushAll(ids: readonly number[]): string {
    return this.#decoder.decode(Buffer.concat(ids.map((id) => this.#shown(id))), { stream: true });
  }

  /** What was kept and will not be completed any more: U+FFFD, or nothing. */
  flush(): string {
    return this.#decoder.decode();
  }

  #shown(id: number): Uint8Array {
    const bytes = this.#table.bytes(id);
    if (bytes.length === 0 || this.#skips(id)) return NOTHING;
    if (!this.#atStart) return bytes;
    this.#atStart = false;
    return this.#table.firstBytes(id);
  }

  #skips(id: number): boolean {
    return this.#skipSpecial && this.#table.isSpecial(id) && this.#marks?.has(id) !== true;
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

/** As `decodeAll`; others are served between pieces. Null where the text has more than `maxChars`. */
export async function decodeLong(
  table: TokenTable,
  ids: readonly number[],
  options: DetokenizerOptions,
  maxChars: number,
): Promise<string | null> {
  const detokenizer = new Detokenizer(table, options);
  let text = '';
  for (let from = 0; from < ids.length; from += PIECE_TOKENS) {
    if (from > 0) await setImmediate();
    text += detokenizer.pushAll(ids.slice(from, from + PIECE_TOKENS));
    if (text.length > maxChars) return null;
  }
  return text + detokenizer.flush();
}
