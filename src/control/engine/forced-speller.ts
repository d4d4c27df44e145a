/** Spells text that a grammar forces with the model's own tokenizer. */
import { readModelTexts } from '../models/load.ts';
import { PromptEncoder } from '../models/prompt-encoder.ts';
import type { Speller } from '../scheduler/jumps.ts';
import type { GrammarVocabulary } from './protocol.ts';

const OPTIONS = { addSpecialTokens: false, mark: null, goesOn: true };
const LONGEST_CHARACTER = 4;

/** `model`: its directory or file. */
export async function readSpeller(model: string, vocabulary: GrammarVocabulary): Promise<ForcedSpeller> {
  const { tokenizer } = await readModelTexts(model);
  return new ForcedSpeller(new PromptEncoder(tokenizer), vocabulary);
}

/**
 * The text is encoded together with that of the last token before it, as far back as its characters are whole: where the tokenizer
 * puts a boundary between the two, the tokens behind it are the canonical ones. Where it would merge them, the earlier token stands,
 * for it is given out already, and the text is encoded by itself.
 */
export class ForcedSpeller implements Speller {
  readonly #encoder: Pick<PromptEncoder, 'encode'>;
  readonly #vocabulary: GrammarVocabulary;
  readonly #decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

  constructor(encoder: Pick<PromptEncoder, 'encode'>, vocabulary: GrammarVocabulary) {
    this.#encoder = encoder;
    this.#vocabulary = vocabulary;
  }

  spell(before: Int32Array, text: Uint8Array): Int32Array {
    const whole = wholeCharacters(text);
    const context = this.#contextOf(before);
    const beside = context.length > 0 ? this.#encodeAfter(context, whole) : null;
    return beside ?? this.#encodeAfter(new Uint8Array(0), whole) ?? new Int32Array(0);
  }

  /** The tokens of `text`; null where they do not spell it byte by byte. */
  #encodeAfter(context: Uint8Array, text: Uint8Array): Int32Array | null {
    const ids = this.#encode(Uint8Array.from([...context, ...text]));
    if (ids === null) return null;
    let first = ids.length;
    let length = 0;
    while (first > 0 && length < text.length) length += this.#bytesOf(ids[--first] as number).length;
    if (length !== text.length) return null;
    const tokens = ids.subarray(first);
    let at = 0;
    for (const id of tokens) {
      const bytes = this.#bytesOf(id);
      if (bytes.length === 0 || bytes.some((byte, index) => byte !== text[at + index])) return null;
      at += bytes.length;
    }
    return tokens;
  }

  #encode(bytes: Uint8Array): Int32Array | null {
    try {
      return this.#encoder.encode(this.#decoder.decode(bytes), OPTIONS);
    } catch {
      // Half a character, at either end.
      return null;
    }
  }

  /** The last token with text, and those before it that its first character needs. */
  #contextOf(before: Int32Array): Uint8Array {
    let bytes: Uint8Array = new Uint8Array(0);
    for (let index = before.length - 1; index >= 0; index--) {
      const own = this.#bytesOf(before[index] as number);
      if (own.length === 0) break;
      bytes = Uint8Array.from([...own, ...bytes]);
      if (!isContinuation(bytes[0] as number)) break;
    }
    return bytes;
  }

  #bytesOf(id: number): Uint8Array {
    const { bytes, offsets } = this.#vocabulary;
    return bytes.subarray(offsets[id] ?? 0, offsets[id + 1] ?? 0);
  }
}

function isContinuation(byte: number): boolean {
  return byte >> 6 === 0b10;
}

/** Without a character that is cut at the end. */
function wholeCharacters(bytes: Uint8Array): Uint8Array {
  for (let back = 1; back <= Math.min(LONGEST_CHARACTER, bytes.length); back++) {
    const byte = bytes[bytes.length - back] as number;
    if (isContinuation(byte)) continue;
    const length = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    return length > back ? bytes.subarray(0, bytes.length - back) : bytes;
  }
  return bytes;
}
