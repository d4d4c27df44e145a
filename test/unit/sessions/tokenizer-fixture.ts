/** Tokenizer files from JSON in memory, checked and read by the product's own reader. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readTokenizerFiles, type TokenizerFiles } from '../../../src/control/models/tokenizer-files.ts';
import { byteTokenizer, temporaryDirectory, type Json } from '../models/model-directory.ts';

const cache = new Map<Json, TokenizerFiles>();

export async function readFiles(tokenizer: Json, vocabSize: number, config: Json = {}): Promise<TokenizerFiles> {
  const known = cache.get(tokenizer);
  if (known) return known;
  const directory = temporaryDirectory();
  writeFileSync(join(directory, 'tokenizer.json'), JSON.stringify(tokenizer));
  writeFileSync(join(directory, 'tokenizer_config.json'), JSON.stringify(config));
  const files = await readTokenizerFiles(directory, vocabSize);
  cache.set(tokenizer, files);
  return files;
}

/** Bytes 0..255, <s> 256, </s> 257, <think> 258 (not special), "hi" 259. */
export function byteFiles(): Promise<TokenizerFiles> {
  const { json, config } = byteTokenizer();
  return readFiles(json, 260, config);
}

/** Ids are letters of a vocabulary with byte fallback, as sentencepiece conversions have it. */
export function sentencePiece(): Json {
  const texts = [
    '<unk>',
    '<s>',
    '</s>',
    ...Array.from({ length: 256 }, (_, byte) => byteName(byte)),
    '▁',
    'h',
    'i',
    '▁h',
    '▁hi',
  ];
  return {
    added_tokens: ['<unk>', '<s>', '</s>'].map((content, id) => ({ id, content, special: true, normalized: false })),
    normalizer: {
      type: 'Sequence',
      normalizers: [
        { type: 'Prepend', prepend: '▁' },
        { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
      ],
    },
    pre_tokenizer: null,
    post_processor: {
      type: 'TemplateProcessing',
      single: [{ SpecialToken: { id: '<s>', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
      pair: [],
      special_tokens: { '<s>': { id: '<s>', ids: [1], tokens: ['<s>'] } },
    },
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        { type: 'Strip', content: ' ', start: 1, stop: 0 },
      ],
    },
    model: {
      type: 'BPE',
      unk_token: '<unk>',
      fuse_unk: true,
      byte_fallback: true,
      vocab: Object.fromEntries(texts.map((text, id) => [text, id])),
      merges: ['▁ h', '▁h i'],
    },
  };
}

function byteName(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
}
