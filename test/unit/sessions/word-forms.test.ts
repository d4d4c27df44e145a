import { describe, expect, it } from 'vitest';
import type { PromptEncoder } from '../../../src/control/models/prompt-encoder.ts';
import { encodeWords, otherSpellings, readWordForms } from '../../../src/control/sessions/word-forms.ts';

const VOCABULARY = ['Paris', 'P', 'a', 'r', 'i', 's', 'ar', 'is', ' P', ' ', ' Paris'];
const texts = {
  tokenText: (id: number) => VOCABULARY[id],
  tokenOf: (text: string) => (VOCABULARY.includes(text) ? VOCABULARY.indexOf(text) : undefined),
};
const spell = (text: string, most: number) =>
  otherSpellings(texts, Int32Array.of(VOCABULARY.indexOf(text)), most).map((ids) =>
    [...ids].map((id) => VOCABULARY[id]).join('|'),
  );

describe('other spellings of a word', () => {
  it('are all sequences of tokens that write it, long tokens first', () => {
    expect(spell('Paris', 64)).toEqual(['P|ar|is', 'P|ar|i|s', 'P|a|r|is', 'P|a|r|i|s']);
    expect(spell(' Paris', 64)).toHaveLength(9);
  });
  it('are at most as many as wanted, and none of a text that is too long', () => {
    expect(spell('Paris', 2)).toEqual(['P|ar|is', 'P|ar|i|s']);
    expect(spell('Paris', 0)).toEqual([]);
    expect(otherSpellings(texts, new Int32Array(1000).fill(2), 64)).toEqual([]);
  });
  it('are none where a token is special: it is no text that letters could write', () => {
    const special = VOCABULARY.length;
    expect(otherSpellings(texts, Int32Array.of(special), 64)).toEqual([]);
    expect(otherSpellings(texts, Int32Array.of(VOCABULARY.indexOf('Paris'), special), 64)).toEqual([]);
  });
  it('end soon where the vocabulary lacks a letter', () => {
    let looked = 0;
    const lacking = {
      tokenText: () => `${'a'.repeat(60)}?`,
      tokenOf: (text: string) => {
        looked++;
        return /^a+$/.test(text) ? 1 : undefined;
      },
    };
    expect(otherSpellings(lacking, Int32Array.of(0), 64)).toEqual([]);
    expect(looked).toBeLessThanOrEqual(64 * 64);
  });
});

it('a word is written as it is and after one space, whether or not it brings one', () => {
  const encoder = {
    ...texts,
    encode: (text: string) => Int32Array.of(VOCABULARY.includes(text) ? VOCABULARY.indexOf(text) : VOCABULARY.length),
  } as Partial<PromptEncoder> as PromptEncoder;
  const forms = (word: string) => readWordForms(encodeWords(encoder, [word])).map(({ ids }) => [...ids]);
  const [plain, spaced] = [VOCABULARY.indexOf('Paris'), VOCABULARY.indexOf(' Paris')];
  expect(forms('Paris').slice(0, 2)).toEqual([[plain], [spaced]]);
  expect(forms(' Paris')[0]).toEqual([spaced]);
  expect(forms(' Paris').flat()).not.toContain(VOCABULARY.length);
});

it('a word of white space is banned alone: a space is another', () => {
  const vocabulary = ['\n', ' ', '\t', 'X'];
  const encoder = {
    tokenText: (id: number) => vocabulary[id],
    tokenOf: (text: string) => (vocabulary.includes(text) ? vocabulary.indexOf(text) : undefined),
    encode: (text: string) => Int32Array.from(text, (letter) => vocabulary.indexOf(letter)),
  } as Partial<PromptEncoder> as PromptEncoder;
  const forms = (word: string) => readWordForms(encodeWords(encoder, [word])).map(({ ids }) => [...ids]);
  expect(forms('\n')).toEqual([[0]]);
  expect(forms('\nX')).toEqual([[0, 3]]);
  expect(forms('  ')).toEqual([[1, 1]]);
});

it.each(['first', 'always'])(
  'a word is banned behind another token where a tokenizer puts a space (%s) before a word',
  (rule) => {
    const vocabulary = ['\u2581', '!', '\u2581!', '<0x0A>', '\u2581Paris', 'Paris'];
    const encoder = {
      tokenText: (id: number) => vocabulary[id],
      tokenOf: (text: string) => (vocabulary.includes(text) ? vocabulary.indexOf(text) : undefined),
      encode: (text: string, { goesOn }: { goesOn?: boolean }) => {
        const spaced = rule === 'first' && goesOn === true ? text : ` ${text}`;
        const written = spaced.replaceAll(' ', '\u2581').replaceAll('\n', '<0x0A>');
        return Int32Array.from(written.match(/\u2581?(Paris|!)|<0x0A>|\u2581/g) ?? [], (id) => vocabulary.indexOf(id));
      },
    } as Partial<PromptEncoder> as PromptEncoder;
    const forms = (word: string) =>
      readWordForms(encodeWords(encoder, [word])).map(({ ids }) => [...ids].map((id) => vocabulary[id]).join('|'));
    expect(forms('!').slice(0, 2)).toEqual(['\u2581!', '!']);
    expect(forms(' Paris')).toContain('\u2581Paris');
    expect(forms('Paris').slice(0, 2)).toEqual(['\u2581Paris', 'Paris']);
    expect(forms('\n')).toEqual(['<0x0A>']);
  },
);
