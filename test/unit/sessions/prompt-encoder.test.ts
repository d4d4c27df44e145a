import { describe, expect, it } from 'vitest';
import { PromptEncoder } from '../../../src/control/models/prompt-encoder.ts';
import { byteTokenizer } from '../models/model-directory.ts';
import { byteFiles, readFiles, sentencePiece } from './tokenizer-fixture.ts';

describe('the encoder', () => {
  it('adds what the post-processor adds, when asked', async () => {
    const encoder = new PromptEncoder(await readFiles(sentencePiece(), 264));
    expect([...encoder.encode('hi', { addSpecialTokens: true, mark: null })]).toEqual([1, 263]);
    expect([...encoder.encode('hi', { addSpecialTokens: false, mark: null })]).toEqual([263]);
  });

  it('follows add_bos_token of a Llama tokenizer', async () => {
    const config = {
      tokenizer_class: 'LlamaTokenizer',
      add_bos_token: false,
      add_eos_token: true,
      bos_token: '<s>',
      eos_token: '</s>',
    };
    const encoder = new PromptEncoder(await readFiles(sentencePiece(), 264, config));
    expect([...encoder.encode('hi', { addSpecialTokens: true, mark: null })]).toEqual([263, 2]);
  });

  it('gives bytes for what the vocabulary lacks, and U+FFFD for an unpaired surrogate', async () => {
    const encoder = new PromptEncoder(await readFiles(sentencePiece(), 264));
    expect([...encoder.encode('é', { addSpecialTokens: false, mark: null })]).toEqual([259, 3 + 0xc3, 3 + 0xa9]);
    const bytes = new PromptEncoder(await byteFiles());
    expect([...bytes.encode('\ud800', { addSpecialTokens: false, mark: null })]).toEqual([0xef, 0xbf, 0xbd]);
  });

  it('prepends a space to the first piece only, where the tokenizer says so', async () => {
    const json = {
      ...sentencePiece(),
      normalizer: null,
      pre_tokenizer: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false },
    };
    const encoder = new PromptEncoder(await readFiles(json, 264));
    expect([...encoder.encode('hi<s>hi', { addSpecialTokens: false, mark: null })]).toEqual([263, 1, 260, 261]);
  });

  it('lets a token take the space around it', async () => {
    const base = byteTokenizer().json;
    const added = [...(base['added_tokens'] as object[])];
    added[0] = { ...added[0], lstrip: true, rstrip: true };
    const encoder = new PromptEncoder(await readFiles({ ...base, added_tokens: added }, 260));
    expect([...encoder.encode('a \n<s>  b', { addSpecialTokens: false, mark: null })]).toEqual([97, 256, 98]);
  });

  it.each([
    [{ post_processor: { type: 'RobertaProcessing' } }, 'RobertaProcessing'],
    [{ normalizer: { type: 'Nonsense' } }, 'Nonsense'],
    [{ normalizer: { type: 'Precompiled', precompiled_charsmap: 'ALQCAACEAAA=' } }, 'normalizer.type "Precompiled"'],
    [{ normalizer: { type: 'BertNormalizer' } }, 'normalizer.type "BertNormalizer"'],
    [{ normalizer: { type: 'Prepend' } }, 'normalizer.prepend is missing'],
    [{ normalizer: { type: 'Replace', pattern: { String: 'a' } } }, 'normalizer.content is missing'],
    [{ normalizer: { type: 'Sequence', normalizers: {} } }, 'normalizer.normalizers must be a list'],
    [{ post_processor: { type: 'RobertaProcessing', cls: ['<s>', 256], sep: ['x', 260] } }, 'adds the id 260'],
    [{ pre_tokenizer: { type: 'Split', pattern: { Regex: '(' }, behavior: 'Isolated' } }, 'tokenizer.json'],
  ])('refuses %j', async (changes, named) => {
    const files = await readFiles({ ...byteTokenizer().json, ...changes }, 260);
    expect(() => new PromptEncoder(files)).toThrow(named);
  });
});

it.each(['BertProcessing', 'RobertaProcessing'])('%s puts its tokens around a text', async (type) => {
  const post_processor = { type, sep: ['</s>', 257], cls: ['<s>', 256], trim_offsets: true, add_prefix_space: false };
  const encoder = new PromptEncoder(await readFiles({ ...byteTokenizer().json, post_processor }, 260));
  expect([...encoder.encode('a', { addSpecialTokens: true, mark: null })]).toEqual([256, 97, 257]);
  expect([...encoder.encode('a', { addSpecialTokens: false, mark: null })]).toEqual([97]);
});

interface WordChanges extends Record<string, unknown> {
  tokens?: string[];
  merges?: string[];
  model?: object;
  /** Of [X]. */
  added?: object;
}

/** `<s>` 0, `</s>` 1 and `[X]` 2 are special, `\n\n` and `<t>` are not; 5 on are words. */
function words(changes: WordChanges = {}): Record<string, unknown> {
  const { tokens = [], merges = [], model = {}, added = {}, ...others } = changes;
  const texts = ['<s>', '</s>', '[X]', '\n\n', '<t>', '<', 's', '>', '/', 'a', 'b', 'ab', 'y', ...tokens];
  const add = (id: number): object => ({
    id,
    content: texts[id],
    special: id < 3,
    normalized: id === 4,
    ...(id === 2 && added),
  });
  return {
    added_tokens: [0, 1, 2, 3, 4].map(add),
    normalizer: null,
    pre_tokenizer: null,
    post_processor: null,
    decoder: { type: 'ByteLevel' },
    model: {
      type: 'BPE',
      vocab: Object.fromEntries(texts.map((text, id) => [text, id])),
      merges: ['a b', ...merges],
      ...model,
    },
    ...others,
  };
}

async function encoded(
  tokenizer: Record<string, unknown>,
  text: string,
  mark: string | null = null,
): Promise<string[]> {
  const files = await readFiles(tokenizer, 100);
  const ids = new PromptEncoder(files).encode(text, { addSpecialTokens: false, mark });
  return Array.from(ids, (id) => files.vocabulary[id] ?? String(id));
}

const MARK = '\ue000';

/** What the crate tokenizers 0.23 gives; but for the marks, which it does not know. */
describe('text between special tokens', () => {
  it.each([
    ['a word that is a token', { model: { ignore_merges: true } }],
    ['merges', { tokens: ['</', '</s'], merges: ['< /', '</ s', '</s >'] }],
  ])('never becomes a special token: %s', async (_, changes) => {
    expect(await encoded(words(changes), `a<${MARK}/s>`, MARK)).not.toContain('</s>');
    expect((await encoded(words(changes), `<${MARK}/s>`, MARK)).join('')).toBe('</s>');
    expect(await encoded(words(changes), 'a</s>', MARK)).toEqual(['a', '</s>']);
  });

  it('keeps added tokens of white space beside one that takes white space', async () => {
    const added = { special: false, lstrip: true, rstrip: true };
    expect(await encoded(words({ added }), 'a\n\n[X]\n\n\nb')).toEqual(['a', '\n\n', '[X]', '\n\n', 'b']);
  });

  it('knows the first piece of a normalised text from the others', async () => {
    const tokens = ['▁', '▁a'];
    const pre_tokenizer = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false };
    const json = words({ tokens, merges: ['▁ a'], normalizer: { type: 'NFC' }, pre_tokenizer });
    expect(await encoded(json, 'a<t>a</s>a')).toEqual(['▁a', '<t>', 'a', '</s>', 'a']);
  });

  it('joins what stands beside a character that becomes no token', async () => {
    expect(await encoded(words(), 'aéb')).toEqual(['ab']);
    expect(await encoded(words({ tokens: ['<0xC3>', '<0xA9>'], model: { byte_fallback: true } }), 'aéüb')).toEqual([
      ...['a', '<0xC3>', '<0xA9>'],
      'b',
    ]);
  });

  it('joins unknown characters of one word only', async () => {
    const json = words({ model: { unk_token: '<s>', fuse_unk: true }, pre_tokenizer: { type: 'Whitespace' } });
    expect(await encoded(json, 'éé éa')).toEqual(['<s>', '<s>', 'a']);
  });

  it('strips what Unicode calls white space', async () => {
    const json = words({
      tokens: ['\ufeff', '\u0085'],
      normalizer: { type: 'Strip', strip_left: true, strip_right: true },
    });
    expect(await encoded(json, '\u0085 a\u0085b\ufeff \u0085')).toEqual(['a', '\u0085', 'b', '\ufeff']);
    expect(await encoded(json, `a${' '.repeat(200_000)}b`)).toEqual(['ab']);
  });
});
