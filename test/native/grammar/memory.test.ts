/** Native memory of grammars, as V8 is told of it: checking schemas leaves nothing behind, without waiting for a collection. */
import { beforeAll, describe, expect, it } from 'vitest';
import type { NativeVocabulary } from '../../../src/control/engine/native-grammar.ts';
import { loadNative } from '../../../src/control/engine/native.ts';
import { Checker } from '../../../src/control/grammar/check.ts';
import { acceptOptions, compile, END, makeVocabulary, smallTokens } from './drive.ts';
import { Random } from './random.ts';
import { randomInstance, randomText } from './random-instance.ts';
import { widerSchema } from './wider-schema.ts';

const SCHEMAS = 150;

const addon = loadNative();
let vocabulary: NativeVocabulary;

beforeAll(async () => {
  const random = new Random(4);
  const letters = ['a', 'b', 'e', 'n', ' ', '1', '"', ',', ':', '\\', 'é'];
  const word = (): string => Array.from({ length: random.between(2, 6) }, () => random.pick(letters)).join('');
  const words = Array.from({ length: 20_000 }, () => Buffer.from(word(), 'utf8'));
  vocabulary = await makeVocabulary([...smallTokens(), ...words], [END]);
});

/** Single bytes: tokens 1 to 256. */
function encode(text: string): number[] {
  return Array.from(Buffer.from(text, 'utf8'), (byte) => byte + 1);
}

describe('memory of grammars', () => {
  it('is back after each schema that was checked', async () => {
    const checker = new Checker(addon, vocabulary, encode, acceptOptions);
    const random = new Random(1);
    const start = addon.grammarBytes();
    let most = 0;
    for (let i = 0; i < SCHEMAS; i++) {
      const instances = Array.from({ length: 3 }, () => ({
        text: randomText(random, randomInstance(random, 2)),
        valid: true,
      }));
      await checker.check({ schema: JSON.stringify(widerSchema(random, 2)), instances });
      most = Math.max(most, addon.grammarBytes() - start);
    }
    expect(most).toBe(0);
  });

  it('is never reached by a token or a count that is no whole number', async () => {
    const grammar = await compile({ kind: 'regex', text: 'a+' }, acceptOptions);
    const matcher = grammar?.createMatcher(vocabulary);
    for (const wrong of [NaN, 0.5, 2 ** 32, -(2 ** 40), Infinity]) {
      expect(() => matcher?.advance(wrong)).toThrow(new RangeError('token must be a whole number of 32 bits'));
      expect(() => matcher?.rollback(wrong)).toThrow(
        new RangeError('rollback: the count must be a whole number of 32 bits'),
      );
    }
    expect(() => matcher?.rollback('1' as never)).toThrow(new TypeError('rollback: the count must be a number'));
    grammar?.release();
  });

  it('is told while it is held, and freed when it is released', async () => {
    const grammar = await compile(
      { kind: 'json_schema', text: '{"type":"string","pattern":"^[a-e]{3,900}$"}' },
      acceptOptions,
    );
    if (!grammar) throw new Error('The schema is refused.');
    const before = addon.grammarBytes();
    const matcher = grammar.createMatcher(vocabulary);
    const mask = new Int32Array(Math.ceil(vocabulary.size / 32));
    for (const token of encode('"abcdeabcde')) {
      matcher.fillMask(mask);
      expect(matcher.advance(token)).toBe(true);
    }
    expect(addon.grammarBytes() - before).toBeGreaterThan(1000);
    const held = addon.grammarBytes();
    matcher.release();
    grammar.release();
    expect(held - addon.grammarBytes()).toBeGreaterThan(grammar.bytes);
    expect(() => matcher.canEnd()).toThrow('released');
    expect(() => grammar.createMatcher(vocabulary)).toThrow('released');
    matcher.release();
    grammar.release();
  });
});
