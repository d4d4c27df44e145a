/** The tokenizer of a GGUF file gives the ids of the tokenizer.json, or of the sentencepiece model, that the file was made from. */
import { describe, expect, it } from 'vitest';
import type { GgufHeader } from '../../../src/control/models/gguf/header.ts';
import { readGgufTokenizer } from '../../../src/control/models/gguf/tokenizer.ts';
import { readModelTexts } from '../../../src/control/models/load.ts';
import type { TokenizerFiles } from '../../../src/control/models/tokenizer-files.ts';
import { decodeAll } from '../../../src/control/sessions/detokenizer.ts';
import { PromptEncoder } from '../../../src/control/models/prompt-encoder.ts';
import { TokenTable } from '../../../src/control/sessions/token-table.ts';
import { hasSharedData, sharedBytes, sharedJson, sharedPath, sharedText } from '../sessions/shared-data.ts';
import { readFiles } from '../sessions/tokenizer-fixture.ts';
import { byteCharacters } from './model-directory.ts';

type Metadata = Record<string, unknown>;

function tokenizerOf(metadata: Metadata, rows: number): TokenizerFiles {
  const header: GgufHeader = { path: '', file: 'model.gguf', size: 0, metadata, tensors: new Map(), dataOffset: 0 };
  return readGgufTokenizer(header, rows).files;
}

/** What llama.cpp's converter makes of a byte-level tokenizer.json. */
function bytePairs({ vocabulary, addedTokens, tokenizer }: TokenizerFiles, pre: string): Metadata {
  const kinds = vocabulary.map(() => 1);
  for (const { id, special } of addedTokens) kinds[id] = special ? 3 : 4;
  const { merges } = tokenizer['model'] as { merges: (string | string[])[] };
  return {
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': pre,
    'tokenizer.ggml.tokens': vocabulary,
    'tokenizer.ggml.token_type': kinds,
    'tokenizer.ggml.merges': merges.map((merge) => (typeof merge === 'string' ? merge : merge.join(' '))),
  };
}

function ids(encoder: PromptEncoder, text: string): number[] {
  return [...encoder.encode(text, { addSpecialTokens: false, mark: null })];
}

/** Scripts, spaces, line ends, digits, contractions, marks, emoji, special tokens and what looks like them. */
const TEXTS = [
  '',
  ' ',
  '  ',
  '   a',
  'a   ',
  '\n',
  '\n\n\n',
  '\r\n',
  '\t\t',
  'a\n b\n  c\n\n\nd',
  ' \n \n x',
  "I'm we'll they'VE don'T 's 'S",
  '0 12 345 6789 1234567890 3.14 1,000',
  'x1y22z333',
  'Äpfel café naïve e\u0301 n\u0303o',
  'ｆｕｌｌ ｗｉｄｔｈ １２３',
  'ﬁ ﬂ ſ K Å',
  '你好，世界！今天天气怎么样？',
  'こんにちは世界',
  '안녕하세요 세계',
  'Привет, мир!',
  'مرحبا بالعالم',
  'नमस्ते दुनिया',
  'สวัสดีชาวโลก',
  '🙂🙃 👩‍👩‍👧‍👦 🇩🇪',
  '\u00a0\u2003\u3000x',
  '\ufeffmark',
  'a\u0000b\u0001',
  'a_b-c.d/e\\f',
  '--- *** ### /// ...',
  '(a)[b]{c}<d>',
  'function f(x) {\n\treturn x + 1; // two\n}\n',
  '<|im_start|>user\nhi<|im_end|>',
  '<|im_start',
  '|im_end|>',
  '<think>a</think>',
  '<tool_call>',
  'https://example.org/a?b=c&d=%20e#f',
  'camelCaseWords ALLCAPS MixedCASEWords',
  'ЁЖИК ёжик',
  'ǅ ǈ ª º ²³',
  '１２３四五',
  '\u0301\u0301a',
];

function someTexts(): string[] {
  const rows = sharedText('datasets', 'gsm8k', 'train-2000.jsonl').split('\n').slice(0, 150);
  const lines = rows.filter(Boolean).map((row) => (JSON.parse(row) as { question: string }).question);
  const templates = ['Qwen-Qwen3-0.6B.jinja', 'meta-llama-Llama-3.1-8B-Instruct.jinja'].map((name) =>
    sharedText('chat-templates', name),
  );
  return [...TEXTS, ...lines, ...templates];
}

describe.skipIf(!hasSharedData)(
  'byte-level pairs of the shared data (needs ../shared/data)',
  { timeout: 240_000 },
  () => {
    it.each([
      ['qwen', 'qwen2', 151_936],
      ['gpt2', 'gpt-2', 50_257],
    ])('%s under the name %s', async (folder, pre, rows) => {
      const truth = await readFiles(sharedJson('tokenizers', folder, 'tokenizer.json') as Metadata, rows);
      const files = tokenizerOf(bytePairs(truth, pre), rows);
      expect(files.vocabulary).toEqual(truth.vocabulary);
      expect(files.addedTokens).toEqual(truth.addedTokens);
      const [own, expected] = [new PromptEncoder(files), new PromptEncoder(truth)];
      const [table, other] = [new TokenTable(files), new TokenTable(truth)];
      for (const text of someTexts()) {
        const encoded = ids(own, text);
        expect(encoded, JSON.stringify(text)).toEqual(ids(expected, text));
        const options = { skipSpecialTokens: false, startsText: true };
        expect(decodeAll(table, encoded, options)).toBe(decodeAll(other, encoded, options));
      }
    });
  },
);

/** The fields of sentencepiece's model file that count: text, score and kind of each piece. */
function sentencePieces(model: Buffer): { text: string; score: number; kind: number }[] {
  const pieces: { text: string; score: number; kind: number }[] = [];
  for (const [field, value] of protobuf(model)) {
    if (field !== 1 || !Buffer.isBuffer(value)) continue;
    const piece = { text: '', score: 0, kind: 1 };
    for (const [inner, part] of protobuf(value)) {
      if (inner === 1 && Buffer.isBuffer(part)) piece.text = part.toString();
      if (inner === 2 && Buffer.isBuffer(part)) piece.score = part.readFloatLE();
      if (inner === 3 && typeof part === 'number') piece.kind = part;
    }
    pieces.push(piece);
  }
  return pieces;
}

function* protobuf(bytes: Buffer): Generator<[number, Buffer | number]> {
  let at = 0;
  const varint = (): number => {
    let [value, shift] = [0, 1];
    for (;;) {
      const byte = bytes[at++]!;
      value += (byte & 127) * shift;
      if (byte < 128) return value;
      shift *= 128;
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    if (tag % 8 === 0) yield [tag >> 3, varint()];
    else {
      const length = tag % 8 === 2 ? varint() : tag % 8 === 5 ? 4 : 8;
      yield [tag >> 3, bytes.subarray(at, at + length)];
      at += length;
    }
  }
}

describe.skipIf(!hasSharedData)('sentencepiece of the shared data (needs ../shared/data)', { timeout: 240_000 }, () => {
  function llama2(changes: Metadata = {}): TokenizerFiles {
    const pieces = sentencePieces(sharedBytes('tokenizers', 'llama2-sp', 'tokenizer.model'));
    expect(pieces.length).toBe(32_000);
    const metadata = {
      'tokenizer.ggml.model': 'llama',
      'tokenizer.ggml.tokens': pieces.map(({ text }) => text),
      'tokenizer.ggml.scores': pieces.map(({ score }) => score),
      'tokenizer.ggml.token_type': pieces.map(({ kind }) => kind),
      ...changes,
    };
    return tokenizerOf(metadata, 32_000);
  }

  it('llama 2: the ids of sentencepiece, and text back from them', () => {
    const files = llama2();
    const encoder = new PromptEncoder(files);
    const table = new TokenTable(files);
    const texts = sharedText('vectors', 'llama-spm.inp').split('\n__ggml_vocab_test__\n');
    const expected = sharedText('vectors', 'llama-spm.out').split('\n');
    expect(texts.length).toBeGreaterThan(40);
    for (const [i, text] of texts.entries()) {
      const truth = (expected[i] ?? '').trim().split(/\s+/).filter(Boolean).map(Number);
      const encoded = ids(encoder, text);
      expect(encoded, JSON.stringify(text)).toEqual(truth);
      expect(decodeAll(table, encoded, { skipSpecialTokens: false, startsText: true })).toBe(text);
    }
  });

  it('llama 2: begins with <s> unless the file says otherwise', () => {
    const first = (files: TokenizerFiles): number[] => [
      ...new PromptEncoder(files).encode('Hello', { addSpecialTokens: true, mark: null }),
    ];
    expect(first(llama2())).toEqual([1, 15043]);
    expect(first(llama2({ 'tokenizer.ggml.add_bos_token': false }))).toEqual([15043]);
    expect(first(llama2({ 'tokenizer.ggml.add_eos_token': true }))).toEqual([1, 15043, 2]);
    expect(first(llama2({ 'tokenizer.ggml.add_space_prefix': false }))).toEqual([1, 10994]);
  });

  it('llama 2: special tokens are found, their text in a message is not', () => {
    const encoder = new PromptEncoder(llama2());
    expect(ids(encoder, '</s>')).toEqual([2]);
    expect(encoder.encode('<\ue000/s>', { addSpecialTokens: false, mark: '\ue000' })).not.toContain(2);
  });

  it('stories260K: the file of llama.cpp and the directory agree', async () => {
    const file = await readModelTexts(sharedPath('models', 'stories260K-gguf', 'stories260K-f32.gguf'));
    const truth = await readModelTexts(sharedPath('models', 'stories260K'));
    expect(file.tokenizer.vocabulary).toEqual(truth.tokenizer.vocabulary);
    const [own, expected] = [new PromptEncoder(file.tokenizer), new PromptEncoder(truth.tokenizer)];
    for (const text of TEXTS) {
      const options = { addSpecialTokens: true, mark: null };
      expect([...own.encode(text, options)], JSON.stringify(text)).toEqual([...expected.encode(text, options)]);
    }
  });
});

describe('a tokenizer in a GGUF file', () => {
  const letters = byteCharacters();

  function pairs(pre: string, merges: string[]): number[][] {
    const made = merges.map((merge) => merge.replace(' ', ''));
    const files = tokenizerOf(
      {
        'tokenizer.ggml.model': 'gpt2',
        'tokenizer.ggml.pre': pre,
        'tokenizer.ggml.tokens': [...letters, ...made],
        'tokenizer.ggml.merges': merges,
      },
      256 + made.length,
    );
    const encoder = new PromptEncoder(files);
    return ['1234', 'a12', "we'll", 'x\n\ny', 'aB'].map((text) => ids(encoder, text));
  }

  it.each([
    // Digits one by one, up to three, or all; a contraction of its own.
    ['gpt-2', [[258], [97, 256]]],
    [
      'qwen2',
      [
        [49, 50, 51, 52],
        [97, 49, 50],
      ],
    ],
    [
      'llama-bpe',
      [
        [257, 52],
        [97, 256],
      ],
    ],
    [
      'smollm',
      [
        [49, 50, 51, 52],
        [97, 49, 50],
      ],
    ],
    [
      'tekken',
      [
        [49, 50, 51, 52],
        [97, 49, 50],
      ],
    ],
  ])('cuts digits as %s does', (pre, expected) => {
    expect(pairs(pre, ['1 2', '12 3', '123 4']).slice(0, 2)).toEqual(expected);
  });

  it('cuts capital letters from small ones as tekken does', () => {
    expect(pairs('tekken', ['a B'])[4]).toEqual([97, 66]);
    expect(pairs('qwen2', ['a B'])[4]).toEqual([256]);
  });

  it('keeps line ends together where the pattern does', () => {
    expect(pairs('qwen2', ['Ċ Ċ'])[3]).toEqual([120, 256, 121]);
  });

  it('refuses a tokenizer.json of another size', () => {
    const own = JSON.stringify({ added_tokens: [], model: { type: 'BPE', vocab: { a: 0, b: 1 }, merges: [] } });
    const metadata = {
      'tokenizer.ggml.model': 'gpt2',
      'tokenizer.ggml.tokens': ['a', 'b'],
      'tokenizer.huggingface.json': own,
    };
    expect(tokenizerOf(metadata, 2).vocabulary).toEqual(['a', 'b']);
    const large = JSON.stringify({ added_tokens: [], model: { type: 'BPE', vocab: { a: 0, b: 1, c: 2 }, merges: [] } });
    expect(() => tokenizerOf({ ...metadata, 'tokenizer.huggingface.json': large }, 2)).toThrow(
      /model\.gguf: tokenizer\.huggingface\.json/,
    );
  });
});
