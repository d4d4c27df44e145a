import { describe, expect, it } from 'vitest';
import { decodeAll, decodeLong, Detokenizer } from '../../../src/control/sessions/detokenizer.ts';
import { TokenTable } from '../../../src/control/sessions/token-table.ts';
import { byteFiles, readFiles, sentencePiece } from './tokenizer-fixture.ts';
import { byteTokenizer } from '../models/model-directory.ts';

const SHOW = { skipSpecialTokens: false, startsText: true };
const SKIP = { skipSpecialTokens: true, startsText: true };

describe('the token table', () => {
  it('has the exact bytes of a byte-level vocabulary', async () => {
    const table = new TokenTable(await byteFiles());
    for (let byte = 0; byte < 256; byte++) expect([...table.bytes(byte)]).toEqual([byte]);
    expect(table.text(259)).toBe('hi');
    expect(table.text(256)).toBe('<s>');
    expect([table.isSpecial(256), table.isSpecial(258), table.isSpecial(0)]).toEqual([true, false, false]);
    expect(table.vocabularyText(32)).toBe('Ġ');
    expect([...table.bytes(5000)]).toEqual([]);
  });

  it('has the exact bytes of a sentencepiece vocabulary', async () => {
    const table = new TokenTable(await readFiles(sentencePiece(), 264));
    expect([...table.bytes(3 + 0xe2)]).toEqual([0xe2]);
    expect(new TextDecoder().decode(table.bytes(263))).toBe(' hi');
  });

  it('refuses a decoder that it does not know', async () => {
    const files = await readFiles({ ...byteTokenizer().json, decoder: { type: 'WordPiece' } }, 260);
    expect(() => new TokenTable(files)).toThrow('WordPiece');
  });
});

it('what a token shows is made once', async () => {
  const table = new TokenTable(await byteFiles());
  expect(table.shown(0x61)).toEqual({ token: 'a', bytes: [0x61] });
  expect(table.shown(0x61)).toBe(table.shown(0x61));
  expect(table.shown(table.size)).toEqual({ token: '', bytes: [] });
});

describe('the detokenizer', () => {
  it('gives an emoji once it is complete, and no replacement character before', async () => {
    const table = new TokenTable(await byteFiles());
    const detokenizer = new Detokenizer(table, SHOW);
    const bytes = [...new TextEncoder().encode('a🙂é')];
    expect(bytes.map((byte) => detokenizer.push(byte))).toEqual(['a', '', '', '', '🙂', '', 'é']);
    expect(detokenizer.flush()).toBe('');
  });

  it('gives U+FFFD for bytes that no character has, as soon as that is certain', async () => {
    const table = new TokenTable(await byteFiles());
    const detokenizer = new Detokenizer(table, SHOW);
    expect([0xf0, 0x9f, 0x61, 0xff].map((byte) => detokenizer.push(byte))).toEqual(['', '', '\ufffda', '\ufffd']);
    expect(detokenizer.push(0xe2) + detokenizer.flush()).toBe('\ufffd');
  });

  it('shows or skips special tokens, and always shows other added tokens', async () => {
    const table = new TokenTable(await byteFiles());
    const ids = [256, 258, 259, 257];
    expect(decodeAll(table, ids, SHOW)).toBe('<s><think>hi</s>');
    expect(decodeAll(table, ids, SKIP)).toBe('<think>hi');
  });

  it('drops one leading space where a sentencepiece text starts, and only there', async () => {
    const table = new TokenTable(await readFiles(sentencePiece(), 264));
    expect(decodeAll(table, [1, 263, 263], SKIP)).toBe('hi hi');
    expect(decodeAll(table, [263], { ...SKIP, startsText: false })).toBe(' hi');
    expect(decodeAll(table, [259, 263], SKIP)).toBe(' hi');
    expect(decodeAll(table, [3 + 0x41, 263], SKIP)).toBe('A hi');
  });

  /** Expected is what tokenizers 0.23 decodes. */
  it.each([
    ['always', [0, 3, 0], 'hi  hi'],
    ['first', [2, 0], ' hi'],
    ['first', [1, 2, 0], '</s>   hi'],
    ['never', [2, 0], '   hi'],
    ['always', [4, 4], 'a a '],
  ])('drops all marks of the first token alone where Metaspace puts them: %s %j', async (scheme, ids, expected) => {
    const vocab = { '▁hi': 0, '</s>': 1, '▁▁': 2, '▁': 3, '▁a▁': 4 };
    const added = [{ id: 1, content: '</s>', special: true, normalized: false }];
    const decoder = { type: 'Metaspace', replacement: '▁', prepend_scheme: scheme, split: true };
    const model = { type: 'BPE', vocab, merges: [] };
    const table = new TokenTable(await readFiles({ added_tokens: added, pre_tokenizer: null, decoder, model }, 5));
    expect(decodeAll(table, ids, SHOW)).toBe(expected);
  });

  it('decodes added tokens as all others: their marks of spaces are spaces', async () => {
    const json = sentencePiece();
    const added = [{ id: 264, content: '▁▁', special: false, normalized: false }];
    const files = await readFiles({ ...json, added_tokens: [...(json['added_tokens'] as []), ...added] }, 265);
    expect(decodeAll(new TokenTable(files), [263, 264, 263], SHOW)).toBe('hi   hi');
  });

  it('reads very many ids piece by piece, others being served in between, to a bound', async () => {
    const table = new TokenTable(await byteFiles());
    // Characters of two, three and four bytes: pieces end within them.
    const ids = [...new TextEncoder().encode('é€🙂'.repeat(10_000)), 0xf0];
    let turns = 0;
    let next: NodeJS.Immediate;
    const count = () => {
      turns++;
      next = setImmediate(count);
    };
    next = setImmediate(count);
    const text = await decodeLong(table, ids, SHOW, Infinity);
    clearImmediate(next);
    expect(text === decodeAll(table, ids, SHOW)).toBe(true);
    expect(text?.startsWith('é€🙂é') && text.endsWith('🙂\ufffd')).toBe(true);
    expect(turns).toBeGreaterThan(5);
    expect(await decodeLong(table, ids, SHOW, 30_000)).toBeNull();
    const stripped = new TokenTable(await readFiles(sentencePiece(), 264));
    expect(await decodeLong(stripped, [1, 263, 263], SKIP, 5)).toBe('hi hi');
  });

  it('keeps a byte order mark', async () => {
    const table = new TokenTable(await byteFiles());
    expect(decodeAll(table, [0xef, 0xbb, 0xbf, 0x61], SHOW)).toBe('\ufeffa');
  });
});
