/**
 * The token sequences that write a word: at the start of a text or after another token, and after a space. Travels between
 * threads as one array: for each sequence its word's index, its length, its ids.
 */
import type { PromptEncoder } from '../models/prompt-encoder.ts';

export interface WordForm {
  word: number;
  ids: Int32Array;
}

export function encodeWords(encoder: PromptEncoder, words: readonly string[]): Int32Array {
  const out: number[] = [];
  const add = (word: number, ids: Int32Array): void => void out.push(word, ids.length, ...ids);
  for (const [index, word] of words.entries()) {
    const plain = encode(encoder, word);
    add(index, plain);
    // Within a text a word mostly comes after a space. (vLLM leaves this form out where it has another length; then the word appears.)
    const spaced = encode(encoder, ` ${word.trimStart()}`);
    if (spaced[0] !== plain[0]) add(index, spaced);
  }
  return Int32Array.from(out);
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
