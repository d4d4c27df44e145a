/**
 * tokenizer.ggml.pre: how a text is cut into words before byte-pair merges. The file has the name only; the patterns are those
 * of the models' own tokenizer.json. A name that is not here is refused: a guess would give other tokens.
 */
import type { JsonObject } from '../json-file.ts';

export interface PreTokenizer {
  normalizer: JsonObject | null;
  steps: JsonObject[];
  /** A word that is a token is taken whole, whatever the merges make of it. */
  ignoreMerges: boolean;
  /** Where the file does not say. */
  addBos: boolean;
}

const LETTERS_OF_TEKKEN = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]';
const SMALL_OF_TEKKEN = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]';
const BEFORE_WORD = '[^\\r\\n\\p{L}\\p{N}]?';
const SPACES = '\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';

/** GPT-4's pattern with the number of digits that a word may have. */
function words(digits: string): string {
  return `(?i:'s|'t|'re|'ve|'m|'ll|'d)|${BEFORE_WORD}\\p{L}+|${digits}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${SPACES}`;
}

const TEKKEN =
  `${BEFORE_WORD}${LETTERS_OF_TEKKEN}*${SMALL_OF_TEKKEN}+|${BEFORE_WORD}${LETTERS_OF_TEKKEN}+${SMALL_OF_TEKKEN}*|` +
  `\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${SPACES}`;

function split(pattern: string): JsonObject {
  return { type: 'Split', pattern: { Regex: pattern }, behavior: 'Isolated', invert: false };
}

function byteLevel(ownWords: boolean): JsonObject {
  return { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: ownWords };
}

const PLAIN = { normalizer: null, ignoreMerges: false, addBos: false };
const QWEN: PreTokenizer = { ...PLAIN, normalizer: { type: 'NFC' }, steps: [split(words('\\p{N}')), byteLevel(false)] };
const LLAMA3: PreTokenizer = {
  ...PLAIN,
  steps: [split(words('\\p{N}{1,3}')), byteLevel(false)],
  ignoreMerges: true,
  addBos: true,
};
const GPT2: PreTokenizer = { ...PLAIN, steps: [byteLevel(true)] };
const DIGITS: PreTokenizer = { ...PLAIN, steps: [{ type: 'Digits', individual_digits: true }, byteLevel(true)] };
const MISTRAL: PreTokenizer = { ...PLAIN, steps: [split(TEKKEN), byteLevel(false)], ignoreMerges: true, addBos: true };

export const PRE_TOKENIZERS: ReadonlyMap<string, PreTokenizer> = new Map([
  ['llama-bpe', LLAMA3],
  ['llama3', LLAMA3],
  ['llama-v3', LLAMA3],
  ['qwen2', QWEN],
  ['deepseek-r1-qwen', QWEN],
  ['gpt-2', GPT2],
  ['smollm', DIGITS],
  ['starcoder', DIGITS],
  ['refact', DIGITS],
  ['tekken', MISTRAL],
]);
