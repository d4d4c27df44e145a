/** EBNF whose ways multiply, lie deep in one another or are written out a thousand times: a result or an error, at once and in little memory. */
import { beforeAll, describe, expect, it } from 'vitest';
import type { NativeVocabulary } from '../../../src/control/engine/native-grammar.ts';
import { compile, END, generateOptions, makeVocabulary, Masks, reads, smallTokens } from './drive.ts';

const tokens = smallTokens();
const masks = new Masks(tokens.length);
let vocabulary: NativeVocabulary;

beforeAll(async () => {
  vocabulary = await makeVocabulary(tokens, [END]);
});

const spell = (text: string) =>
  Array.from(text, (letter) => tokens.findIndex((token) => token.length === 1 && token.toString() === letter));

async function grammarOf(text: string) {
  const grammar = await compile({ kind: 'grammar', text }, generateOptions);
  if (!grammar) throw new Error('The grammar is refused.');
  return grammar;
}

const chain = (length: number) =>
  Array.from({ length }, (_, i) => `c${i} ::= c${i + 1}\n`).join('') + `c${length} ::= "q"*\n`;

describe('an EBNF', () => {
  it('whose alternatives are empty, or begin alike, again and again, is read', async () => {
    const empty = await grammarOf('root ::= ("x"* | "y"*){40} "!"');
    expect(reads(empty.createMatcher(vocabulary), masks, spell('xyyx!'))).toBe(true);
    expect(reads(empty.createMatcher(vocabulary), masks, spell('xyz!'))).toBe(false);
    const doubled = Array.from({ length: 40 }, (_, i) => `r${i} ::= r${i + 1} | r${i + 1}\n`).join('');
    const alike = await grammarOf(`root ::= r0\n${doubled}r40 ::= "a"\n`);
    expect(reads(alike.createMatcher(vocabulary), masks, spell('a'))).toBe(true);
  });

  it('of rules that lie thousands deep in one another is read, or is too ambiguous', async () => {
    const deep = await grammarOf(`root ::= c0 c0 c0 "z"\n${chain(9000)}`);
    expect(reads(deep.createMatcher(vocabulary), masks, spell('qqz'))).toBe(true);
    await expect(grammarOf(`root ::= ${'c0 '.repeat(100)}"z"\n${chain(9000)}`)).rejects.toThrow('refused');
  });

  it('that writes a long sequence a thousand times is refused before it is made', async () => {
    await expect(grammarOf(`root ::= (${'"a" '.repeat(100_000)}){1000}`)).rejects.toThrow('refused');
  });

  it('counts with the bytes that it holds', async () => {
    expect((await grammarOf('root ::= [a-z]{1,200} [é日]{1,50}')).bytes).toBeGreaterThan(10_000);
  });
});
