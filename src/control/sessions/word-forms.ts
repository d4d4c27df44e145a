/**
 * The token sequences that write a word: at the start of a text, after another token, and after a space. Travels between
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
/** Tokens that are looked for per spelling. */
const STEPS = 64;
/** Of sentencepiece's. */
const SPACE_MARK = '\u2581';

/** What spelling needs of a tokenizer. */
export interface TokenTexts {
  /** As the vocabulary writes it. */
  tokenText(id: number): string | undefined;
  tokenOf(text: string): number | undefined;
}

export function encodeWords(encoder: PromptEncoder, words: readonly string[]): Int32Array {
  const forms = words.flatMap((text, word) => writtenForms(encoder, text).map((ids) => ({ word, ids })));
  const each = Math.min(Math.floor((MAX_WORD_FORMS - forms.length) / forms.length), MAX_SPELLINGS);
  // A model whose first choice is banned takes other tokens for the same letters.
  const others = forms.flatMap(({ word, ids }) =>
    otherSpellings(encoder, ids, each).map((other) => ({ word, ids: other })),
  );
  return Int32Array.from([...forms, ...others].flatMap(({ word, ids }) => [word, ids.length, ...ids]));
}

/** At most `most` other sequences that write the same text, those of long tokens first. Special tokens are written in one way only. */
export function otherSpellings(texts: TokenTexts, ids: Int32Array, most: number): Int32Array[] {
  const text = writtenText(texts, ids);
  return text === undefined ? [] : spellings(texts, text, most, STEPS * most, ids);
}

/** As the vocabulary writes it; undefined where a token is special. */
function writtenText(texts: TokenTexts, ids: Int32Array): string | undefined {
  const pieces = [...ids].map((id) => texts.tokenText(id));
  return pieces.includes(undefined) ? undefined : pieces.join('');
}

/** Of a text as the vocabulary writes it, but for `known`. `steps`: vocabularies without some letter have ends that lead nowhere. */
function spellings(texts: TokenTexts, text: string, most: number, steps: number, known: Int32Array): Int32Array[] {
  const found: Int32Array[] = [];
  const extend = (at: number, before: number[]): void => {
    if (at === text.length && !sameIds(before, known)) found.push(Int32Array.from(before));
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

/**
 * As the tokenizer writes it where a text begins, behind another token (sentencepiece's put a space before a first word) and behind a space, as
 * most words of a text are. (vLLM leaves the last form out where it has another length; then the word appears.) None ends in another, which
 * bans both.
 */
function writtenForms(encoder: PromptEncoder, text: string): Int32Array[] {
  const forms = [encode(encoder, text, false), formBehind(encoder, text)];
  // Of a line break in front of the word, or alone, a space is no other form.
  if (!text.startsWith(' ')) forms.push(formBehind(encoder, ` ${text}`));
  return forms.filter((form, at) => !forms.some((other, i) => i !== at && covers(other, form, i < at)));
}

/** Behind another token. A normalizer may put the space of a first word there all the same. */
function formBehind(encoder: PromptEncoder, text: string): Int32Array {
  const ids = encode(encoder, text, true);
  const written = writtenText(encoder, ids) ?? '';
  if (!written.startsWith(SPACE_MARK.repeat(text.search(/[^ ]|$/) + 1))) return ids;
  const [without = ids] = spellings(encoder, written.slice(SPACE_MARK.length), 1, STEPS * MAX_SPELLINGS, ids);
  return without;
}

/** Where `form` ends in the other one. Of two that are the same the earlier counts. */
function covers(other: Int32Array, form: Int32Array, isEarlier: boolean): boolean {
  if (other.length > form.length || (other.length === form.length && !isEarlier)) return false;
  return sameIds([...form.subarray(form.length - other.length)], other);
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

function encode(encoder: PromptEncoder, text: string, goesOn: boolean): Int32Array {
  return encoder.encode(text, { addSpecialTokens: false, mark: null, goesOn });
}
