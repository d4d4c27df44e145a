/** Forced text to tokens: canonical ones, where the tokens before allow it, and always the very bytes. */
import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it } from 'vitest';
import { ForcedSpeller, readSpeller } from '../../../src/control/engine/forced-speller.ts';
import type { GrammarVocabulary } from '../../../src/control/engine/protocol.ts';
import { PromptEncoder } from '../../../src/control/models/prompt-encoder.ts';
import {
  grammarVocabulary,
  readModelTokenizer,
  type ModelTokenizer,
} from '../../../src/control/sessions/model-tokenizer.ts';

function vocabularyOf(texts: (string | Uint8Array)[]): GrammarVocabulary {
  const pieces = texts.map((text) => Buffer.from(text));
  const offsets = Int32Array.from({ length: pieces.length + 1 }, (_, i) => Buffer.concat(pieces.slice(0, i)).length);
  return { bytes: new Uint8Array(Buffer.concat(pieces)), offsets };
}

const TEXTS = [
  '',
  'a',
  'b',
  'ab',
  'é',
  Buffer.from('é').subarray(0, 1),
  Buffer.from('é').subarray(1),
  '👍',
  'abc',
  'c',
];

/** The longest token at each place. */
function greedy(text: string): Int32Array {
  const ids: number[] = [];
  for (let rest = text; rest !== '';) {
    const fitting = TEXTS.flatMap((token, id) =>
      typeof token === 'string' && token !== '' && rest.startsWith(token) ? [id] : [],
    );
    const best = fitting.reduce((a, b) => ((TEXTS[a] as string).length >= (TEXTS[b] as string).length ? a : b));
    ids.push(best);
    rest = rest.slice((TEXTS[best] as string).length);
  }
  return Int32Array.from(ids);
}

const spell = (before: number[], text: string | Uint8Array, encode = greedy) =>
  Array.from(new ForcedSpeller({ encode }, vocabularyOf(TEXTS)).spell(Int32Array.from(before), Buffer.from(text)));

describe('ForcedSpeller', () => {
  it('takes the tokens behind a boundary, and spells alone what would merge', () => {
    expect(spell([], 'abca')).toEqual([8, 1]);
    expect(spell([9], 'ab')).toEqual([3]);
    // After `a` the text `bc` would be part of `abc`.
    expect(spell([1], 'bc')).toEqual([2, 9]);
  });

  it('looks back to the beginning of a character, and no further than a token without text', () => {
    const seen: string[] = [];
    const encode = (text: string) => {
      seen.push(text);
      return greedy(text);
    };
    expect(spell([1, 5, 6], 'ab', encode)).toEqual([3]);
    expect(spell([1, 0], 'ab', encode)).toEqual([3]);
    expect(seen).toEqual(['éab', 'ab']);
  });

  it('leaves a character that is cut, at either end', () => {
    expect(spell([1], Buffer.from('ab👍').subarray(0, 4))).toEqual([3]);
    expect(spell([5], Buffer.from('é').subarray(1))).toEqual([]);
    expect(spell([], Buffer.from('👍').subarray(0, 2))).toEqual([]);
  });

  it('gives nothing where the tokenizer changes the text', () => {
    expect(spell([1], 'ab', (text) => greedy(text.replace('b', 'c')))).toEqual([]);
    expect(spell([], 'ab', () => Int32Array.of(0, 0))).toEqual([]);
    expect(spell([], 'ab', () => new Int32Array(0))).toEqual([]);
    expect(spell([], 'b', () => Int32Array.of(3))).toEqual([]);
  });
});

describe("with the starter model's tokenizer", () => {
  const directory = fileURLToPath(new URL('../../../models/starter', import.meta.url));
  let tokenizer: ModelTokenizer;
  let speller: ForcedSpeller;
  let encoder: PromptEncoder;
  beforeAll(async () => {
    tokenizer = await readModelTokenizer(directory);
    speller = await readSpeller(directory, grammarVocabulary(tokenizer));
    encoder = new PromptEncoder(tokenizer.files);
  });

  it.each([
    ['{"', 'customer_name": "'],
    ['Hello', ', dear reader of this text.'],
    ['', 'the whole answer'],
    ['ünï', 'cödé 👍🏽'],
  ])('%j goes on with %j', (before, text) => {
    const encode = (whole: string) => [...encoder.encode(whole, { addSpecialTokens: false, mark: null, goesOn: true })];
    const context = encode(before);
    const tokens = [...speller.spell(Int32Array.from(context), Buffer.from(text))];
    const bytes = Buffer.concat(tokens.map((id) => tokenizer.table.bytes(id)));
    expect(bytes.toString()).toBe(text);
    expect([...context, ...tokens]).toEqual(encode(before + text));
  });
});
