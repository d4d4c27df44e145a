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
