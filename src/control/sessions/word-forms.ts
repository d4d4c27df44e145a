/**
 * The token sequences that write a word: at the start of a text or after another token, and after a space. Travels between
 * threads as one array: for each sequence its word's index, its length, its ids.
 */
import type { PromptEncoder } from '../models/prompt-encoder.ts';

export interface WordForm {
  word: number;
  ids: Int32Array;
}

/** Most forms of all words, and tokens of one: each is compared with the output's end at every step. */
export const MAX_WORD_FORMS = 1024;
export const MAX_WORD_TOKENS = 64;
/** Most other spellings of one form. A word of six letters in a vocabulary that has all their pieces has 31. */
const MAX_SPELLINGS = 64;

/** What spelling needs of a tokenizer. */
export interface TokenTexts {
  /** As the vocabulary writes it. */
  tokenText(id: number): string | undefined;
  tokenOf(text: string): number | undefined;
}

export function encodeWords(encoder: PromptEncoder, words: readonly string[]): Int32Array {
  const forms: WordForm[] = [];
  for (const [word, text] of words.entries()) {
    const plain = encode(encoder, text);
    forms.push({ word, ids: plain });
    // Within a text a word mostly comes after a space. (vLLM leaves this form out where it has another length; then the word appears.)
    const spaced = encode(encoder, ` ${text.trimStart()}`);
    if (spaced[0] !== plain[0]) forms.push({ word, ids: spaced });
  }
  const each = Math.min(Math.floor((MAX_WORD_FORMS - forms.length) / forms.length), MAX_SPELLINGS);
  // A model whose first choice is banned takes other tokens for the same letters.
  const others = forms.flatMap(({ word, ids }) =>
    otherSpellings(encoder, ids, each).map((other) => ({ word, ids: other })),
  );
  return Int32Array.from([...forms, ...others].flatMap(({ word, ids }) => [word, ids.length, ...ids]));
}

/** At most `most` other sequences that write the same text, those of long tokens first. Special tokens are written in one way only. */
export function otherSpellings(texts: TokenTexts, ids: Int32Array, most: number): Int32Array[] {
  const pieces = [...ids].map((id) => texts.tokenText(id));
  if (pieces.includes(undefined)) return [];
  const text = pieces.join('');
  const found: Int32Array[] = [];
  // Vocabularies without some letter have ends that lead nowhere.
  let steps = 64 * most;
  const extend = (at: number, before: number[]): void => {
    if (at === text.length && !sameIds(before, ids)) found.push(Int32Array.from(before));
    if (at === text.length || before.length === MAX_WORD_TOKENS) return;
    for (let end = text.length; end > at; end--) {
      if (found.length >= most || --steps < 0) return;
      const id = texts.tokenOf(text.slice(at, end));
      if (id !== undefined) extend(end, [...before, id]);
    }
  };
  if (most > 0 && text.length <= 2 * MAX_WORD_TOKENS) extend(0, []);
  return found;
}

function sameIds(a: readonly number[], b: Int32Array): boolean {
  return a.length === b.length && a.every((id, at) => id === b[at]);
}

export function readWordForms(packed: Int32Array): WordForm[] {
  const forms: WordForm[] = [];
  for (let at = 0; at < packed.length;) {
    const [word = 0, length = 0] = packed.subarray(at, at + 2);
    forms.push({ word, ids: packed.slice(at + 2, at + 2 + length) });
    at += 2 + length;
  }
  return forms;
}

function encode(encoder: PromptEncoder, text: string): Int32Array {
  return encoder.encode(text, { addSpecialTokens: false, mark: null });
}
