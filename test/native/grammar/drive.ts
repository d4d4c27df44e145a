/** The grammar engine over a small vocabulary, and what a test asks of it. */
import { ACCEPT, compileGrammar, GENERATE, GrammarError } from '../../../src/control/grammar/compile.ts';
import type {
  NativeGrammar,
  NativeGrammarOptions,
  NativeGrammarSource,
  NativeMatcher,
  NativeVocabulary,
} from '../../../src/control/engine/native-grammar.ts';
import { loadNative } from '../../../src/control/engine/native.ts';
import { Random } from './random.ts';

/** Ends a text; it has no bytes. */
export const END = 0;
const addon = loadNative();
/** Busy machines are slow: here time bounds nothing. */
const PATIENCE = 600;
export const generateOptions: NativeGrammarOptions = { ...GENERATE, seconds: PATIENCE };
export const acceptOptions: NativeGrammarOptions = { ...ACCEPT, seconds: PATIENCE };

/** The end token, every byte, words of JSON and random pieces. */
export function smallTokens(): Buffer[] {
  const words = [
    '{"',
    '":',
    '": ',
    '",',
    '","',
    '"}',
    '},',
    ']}',
    '[]',
    '{}',
    'true',
    'tru',
    'null',
    'fal',
    '12',
    '00',
    '.0',
  ];
  const random = new Random(3);
  const pieces = ['a', 'b', 'x', '0', '1', '-', ' ', 'é', '"', '\\', ',', ':', '\n', 'name', '日'];
  const mixed = Array.from({ length: 200 }, () =>
    Array.from({ length: random.between(2, 4) }, () => random.pick(pieces)).join(''),
  );
  const single = Array.from({ length: 256 }, (_, byte) => Buffer.from([byte]));
  const cut = [Buffer.from([0xe6, 0x97]), Buffer.from([0xa5, 0x22]), Buffer.from([0x61, 0xc3])];
  const whole = [...new Set([...words, ...mixed])].map((text) => Buffer.from(text, 'utf8'));
  return [Buffer.alloc(0), ...single, ...cut, ...whole];
}

export function makeVocabulary(tokens: readonly Uint8Array[], ends: readonly number[]): Promise<NativeVocabulary> {
  const offsets = new Int32Array(tokens.length + 1);
  for (const [id, token] of tokens.entries()) offsets[id + 1] = (offsets[id] ?? 0) + token.length;
  return addon.createVocabulary(Buffer.concat(tokens), offsets, Int32Array.from(ends));
}

/** Null where the source is refused by name or over a bound; a malformed source throws. */
export async function compile(
  source: NativeGrammarSource,
  options: NativeGrammarOptions,
): Promise<NativeGrammar | null> {
  try {
    return await compileGrammar(addon, source, options);
  } catch (error) {
    if (error instanceof GrammarError && (error.kind === 'refused' || error.kind === 'bound')) return null;
    throw error;
  }
}

export class Masks {
  readonly #words: Int32Array;
  readonly #size: number;

  constructor(size: number) {
    this.#size = size;
    this.#words = new Int32Array(Math.ceil(size / 32));
  }

  /** The tokens that may come. */
  allowed(matcher: NativeMatcher): number[] {
    matcher.fillMask(this.#words);
    const out: number[] = [];
    for (let id = 0; id < this.#size; id++) if (this.#has(id)) out.push(id);
    return out;
  }

  #has(id: number): boolean {
    return (((this.#words[id >> 5] ?? 0) >>> (id & 31)) & 1) === 1;
  }
}

/** Whether the whole text is read and may end; every token taken must be in the mask before it. */
export function reads(matcher: NativeMatcher, masks: Masks, ids: Iterable<number>): boolean {
  for (const id of ids) {
    const allowed = masks.allowed(matcher).includes(id);
    if (matcher.advance(id) !== allowed) throw new Error(`The mask and the matcher disagree about token ${id}.`);
    if (!allowed) return false;
  }
  return matcher.canEnd();
}
