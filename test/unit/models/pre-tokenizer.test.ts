import { describe, expect, it } from 'vitest';
import { PromptEncoder } from '../../../src/control/models/prompt-encoder.ts';
import { readFiles } from '../sessions/tokenizer-fixture.ts';
import { byteCharacters, byteTokenizer, type Json } from './model-directory.ts';

const BYTES: Json = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
const WORDS: Json = { ...BYTES, use_regex: true };

const sequence = (...pretokenizers: Json[]): Json => ({ type: 'Sequence', pretokenizers });
const metaspace = (options: Json): Json => ({ type: 'Metaspace', replacement: '▁', ...options });
const split = (pattern: Json, behavior: string, invert: boolean): Json => ({
  type: 'Split',
  pattern,
  behavior,
  invert,
});

/** What the crate tokenizers 0.23 answers to pre_tokenize_str. */
const CASES: [string, Json, string, string[]][] = [
  [
    'digits of other scripts',
    sequence({ type: 'Digits', individual_digits: true }, WORDS),
    'a ٣٤',
    ['a', 'Ġ', 'Ù£', 'Ù¤'],
  ],
  [
    'numbers that are no digits',
    sequence({ type: 'Digits', individual_digits: true }, WORDS),
    'x² 12',
    ['x', 'Â²', 'Ġ', '1', '2'],
  ],
  ['numerals', sequence({ type: 'Digits', individual_digits: true }, WORDS), 'Ⅷ½', ['âħ§', 'Â½']],
  [
    'runs of digits',
    sequence({ type: 'Digits', individual_digits: false }, BYTES),
    'a ٣٤ 12x',
    ['aĠ', 'Ù£Ù¤', 'Ġ', '12', 'x'],
  ],
  ['a byte order mark is no space', WORDS, ' \ufeffa', ['Ġï»¿', 'a']],
  ['the next line is one', WORDS, ' \u0085\u0085a', ['ĠÂħ', 'Âħ', 'a']],
  ["GPT-2's words", WORDS, "it's  2024", ['it', "'s", 'Ġ', 'Ġ2024']],
  ['a space before the first word', { ...WORDS, add_prefix_space: true }, 'a b', ['Ġa', 'Ġb']],
  ['a space that is there', { ...WORDS, add_prefix_space: true }, ' a', ['Ġa']],
  ['a space before two units', { ...WORDS, add_prefix_space: true }, '\u{f0000} x', ['Ġó°ĢĢ', 'Ġx']],
  ['Metaspace in one', metaspace({ prepend_scheme: 'first', split: false }), 'a  b', ['▁a▁▁b']],
  ['Metaspace cut', metaspace({ prepend_scheme: 'always', split: true }), 'a  b', ['▁a', '▁', '▁b']],
  ['Metaspace of spaces', metaspace({ prepend_scheme: 'always', split: true }), '  ', ['▁', '▁']],
  ['Metaspace that says nothing', metaspace({}), 'a  b', ['▁a', '▁', '▁b']],
  [
    'Metaspace without a prefix',
    metaspace({ add_prefix_space: false, prepend_scheme: 'never' }),
    'a  b',
    ['a', '▁', '▁b'],
  ],
  ['Metaspace of old files', metaspace({ add_prefix_space: false, split: false }), 'a b', ['a▁b']],
  ['punctuation', sequence({ type: 'Punctuation' }, BYTES), 'a?? $+b', ['a', '?', '?', 'Ġ', '$', '+', 'b']],
  [
    'runs of punctuation',
    sequence({ type: 'Punctuation', behavior: 'Contiguous' }, BYTES),
    'a?? $+b',
    ['a', '??', 'Ġ', '$+', 'b'],
  ],
  ['words between spaces', sequence({ type: 'WhitespaceSplit' }, BYTES), 'a \ufeff b\u0085c', ['a', 'ï»¿', 'b', 'c']],
  ['words and signs', sequence({ type: 'Whitespace' }, BYTES), 'été ?!a1', ['Ã©tÃ©', '?!', 'a1']],
  ['numbers that are no words', sequence({ type: 'Whitespace' }, BYTES), 'x²½ Ⅷ①', ['x', 'Â²Â½', 'âħ§', 'âĳł']],
  ['what joins characters', sequence({ type: 'Whitespace' }, BYTES), 'a\u200db \u203f_', ['aâĢįb', 'âĢ¿_']],
  ['isolated, inverted', sequence(split({ Regex: '\\p{N}' }, 'Isolated', true), BYTES), 'a1b', ['a', '1', 'b']],
  ['removed, inverted', sequence(split({ Regex: '\\p{N}+' }, 'Removed', true), BYTES), 'a12b3', ['12', '3']],
];

/** A vocabulary that has every part of the text as a token: each word becomes one. */
async function piecesOf(preTokenizer: Json, text: string): Promise<string[]> {
  const characters = byteCharacters();
  const asBytes = [...Buffer.from(text)].map((byte) => characters[byte]).join('');
  const texts = new Set([...characters, '▁']);
  for (const whole of [asBytes, `Ġ${asBytes}`, `▁${text.replaceAll(' ', '▁')}`]) {
    for (let from = 0; from < whole.length; from++) {
      for (let to = from + 1; to <= whole.length; to++) texts.add(whole.slice(from, to));
    }
  }
  const vocab = Object.fromEntries([...texts].map((token, id) => [token, id]));
  const model = { type: 'BPE', vocab, merges: [], ignore_merges: true };
  const files = await readFiles(
    { ...byteTokenizer().json, added_tokens: [], pre_tokenizer: preTokenizer, model },
    texts.size,
  );
  const ids = new PromptEncoder(files).encode(text, { addSpecialTokens: false, mark: null });
  return [...ids].map((id) => files.vocabulary[id] ?? '');
}

describe('words of a text', () => {
  it.each(CASES)('%s', async (_, preTokenizer, text, expected) => {
    expect(await piecesOf(preTokenizer, text)).toEqual(expected);
  });

  it.each([
    [split({ String: ' ' }, 'MergedWithNext', false), 'behavior "MergedWithNext"'],
    [split({ String: ' ' }, 'Contiguous', false), 'behavior "Contiguous"'],
    [split({ String: ' ' }, 'Removed', false), 'behavior "Removed"'],
    [{ type: 'Punctuation', behavior: 'Removed' }, 'behavior "Removed"'],
    [{ type: 'UnicodeScripts' }, 'type "UnicodeScripts"'],
    [metaspace({ prepend_scheme: 'last' }), 'prepend_scheme "last"'],
  ])('%j is refused', async (preTokenizer, problem) => {
    await expect(piecesOf(sequence(preTokenizer), 'a b')).rejects.toThrow(
      `tokenizer.json: pre_tokenizer.${problem} is not supported`,
    );
  });
});

describe('a pattern that is none', () => {
  const glob = { Glob: ' ' };
  const normalizer = { type: 'Sequence', normalizers: [{ type: 'Replace', pattern: glob, content: '_' }] };

  it.each([{ pre_tokenizer: sequence(split(glob, 'Isolated', false), BYTES) }, { normalizer }])(
    'is refused: %j',
    async (steps) => {
      const files = await readFiles({ ...byteTokenizer().json, ...steps }, 260);
      expect(() => new PromptEncoder(files)).toThrow(
        'tokenizer.json: has the pattern {"Glob":" "}, which is neither String nor Regex.',
      );
    },
  );
});

/** What the crate tokenizers 0.23 answers to normalize_str. */
describe('a normalizer', () => {
  const lowercase = { type: 'Lowercase' };
  const replace = { type: 'Replace', pattern: { String: 'a' }, content: "$&$'$$" };
  const replaceMatch = { type: 'Replace', pattern: { Regex: '(b)' }, content: '$1' };

  it.each([
    [lowercase, 'ΑΣ ΣΑΣ. İ', 'ασ σασ. i̇'],
    [{ type: 'Sequence', normalizers: [lowercase, replace, replaceMatch] }, 'AΣb', "$&$'$$σ$1"],
  ])('%j', async (normalizer, text, expected) => {
    const files = await readFiles(
      { ...byteTokenizer().json, added_tokens: [], normalizer, model: { type: 'BPE', vocab: bytes(), merges: [] } },
      260,
    );
    const ids = new PromptEncoder(files).encode(text, { addSpecialTokens: false, mark: null });
    expect(Buffer.from(ids).toString()).toBe(expected);
  });
});

describe('white space around special tokens', () => {
  it('is what Unicode says', async () => {
    const { json } = byteTokenizer();
    const added = { id: 256, content: '<s>', special: true, normalized: false, lstrip: true, rstrip: true };
    const encoder = new PromptEncoder(
      await readFiles({ ...json, added_tokens: [added], model: { type: 'BPE', vocab: bytes(), merges: [] } }, 260),
    );
    const count = (text: string): number => encoder.encode(text, { addSpecialTokens: false, mark: null }).length;
    expect(count('a \u0085<s>\u0085 b')).toBe(3);
    expect(count('a\ufeff<s>\ufeffb')).toBe(9);
  });
});

function bytes(): Record<string, number> {
  return Object.fromEntries(byteCharacters().map((character, byte) => [character, byte]));
}
