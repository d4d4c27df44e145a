import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { PromptEncoder } from '../../../src/control/models/prompt-encoder.ts';
import { readTokenizerFiles } from '../../../src/control/models/tokenizer-files.ts';
import { byteTokenizer, writeModel, type Json } from './model-directory.ts';

const ROWS = 262;
const { config, json } = byteTokenizer();
const token = (content: string, special = true): Json => ({
  content,
  special,
  normalized: false,
  lstrip: false,
  rstrip: false,
});

async function read(files: Record<string, Json>, tokenizerConfig: Json = config) {
  const directory = writeModel({ config: { vocab_size: ROWS }, tokenizerConfig });
  for (const [name, value] of Object.entries(files)) writeFileSync(join(directory, name), JSON.stringify(value));
  const read = await readTokenizerFiles(directory, ROWS);
  const ids = (text: string): number[] => [
    ...new PromptEncoder(read).encode(text, { addSpecialTokens: false, mark: null }),
  ];
  return { ...read, ids };
}

describe('tokens that tokenizer.json does not have', () => {
  it('come from added_tokens_decoder with all that it says of them', async () => {
    const decoder = {
      256: token('<s>', false),
      260: token('<|im_end|>'),
      261: { ...token('<x>', false), rstrip: true },
    };
    const files = await read({}, { ...config, added_tokens_decoder: decoder });
    expect(files.ids('hi<|im_end|><x>  hi')).toEqual([259, 260, 261, 259]);
    expect(files.vocabulary.slice(256)).toEqual(['<s>', '</s>', '<think>', 'hi', '<|im_end|>', '<x>']);
    const special = files.addedTokens.filter((added) => added.special).map(({ content }) => content);
    expect(special).toEqual(['<s>', '</s>', '<|im_end|>']);
  });

  it('come from added_tokens.json, special where another file says so', async () => {
    const files = await read({
      'added_tokens.json': { '<|im_end|>': 260, '<x>': 261, '<pad>': ROWS, '<s>': 256 },
      'special_tokens_map.json': { additional_special_tokens: [{ content: '<|im_end|>' }] },
    });
    expect(files.ids('<|im_end|><x>')).toEqual([260, 261]);
    expect(files.addedTokens.slice(-2).map(({ special }) => special)).toEqual([true, false]);
    expect(files.vocabulary.length).toBe(ROWS);
  });

  it.each([
    [{ '<y>': 3 }, 'tokenizer.json: gives the id 3'],
    [{ '<y>': 261 }, 'tokenizer.json: has no token of id 260'],
    [{ '<y>': -1 }, 'added_tokens.json: "<y>".id must be an integer'],
    [{ '<y>': 'x' }, 'added_tokens.json: "<y>".id must be an integer'],
    [{ '': 260 }, 'added_tokens.json: "".content has 0 characters'],
  ])('%j is refused', async (later, problem) => {
    await expect(read({ 'added_tokens.json': later })).rejects.toThrow(problem);
  });

  it.each([
    [{ x: token('<y>') }, 'added_tokens_decoder.x.id must be an integer'],
    [{ 260: 3 }, 'added_tokens_decoder.260.content has 0 characters'],
    [{ 260: { content: '<y>', special: 1 } }, 'added_tokens_decoder.260.special must be true or false'],
  ])('%j is refused by its own file', async (decoder, problem) => {
    await expect(read({}, { ...config, added_tokens_decoder: decoder })).rejects.toThrow(
      `tokenizer_config.json: ${problem}`,
    );
  });

  it('are none where the files agree', async () => {
    const files = await read(
      { 'added_tokens.json': { '<think>': 258 } },
      { ...config, added_tokens_decoder: { 257: token('</s>') } },
    );
    expect(files.tokenizer).toEqual(json);
  });
});

describe('special_tokens_map.json', () => {
  const map = { 'special_tokens_map.json': { bos_token: '<s>', eos_token: { content: '<s>' } } };

  it('names the tokens that tokenizer_config.json does not', async () => {
    expect((await read(map, {})).specialTokens).toEqual({ bos_token: '<s>', eos_token: '<s>' });
    expect((await read(map, { bos_token: null, eos_token: '</s>' })).specialTokens).toEqual({ eos_token: '</s>' });
  });
});
