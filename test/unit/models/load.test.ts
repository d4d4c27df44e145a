import {
  appendFileSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  unlinkSync,
  writeFileSync,
  mkdirSync,
} from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ModelError } from '../../../src/control/models/errors.ts';
import { loadModel, readModelTexts } from '../../../src/control/models/load.ts';
import {
  byteTokenizer,
  CONFIG,
  plainHeader,
  temporaryDirectory,
  writeModel,
  writeSafetensors,
  type Json,
} from './model-directory.ts';
import { expectedTensors } from '../../../src/control/models/tensors.ts';
import { readConfig } from '../../../src/control/models/config.ts';
import { STARTER } from '../../fixtures/starter.ts';

function shapes(changes: Json = {}): Map<string, number[]> {
  return expectedTensors(readConfig({ ...CONFIG, ...changes }).spec);
}

async function refusal(directory: string): Promise<string> {
  try {
    await loadModel(directory);
  } catch (error) {
    if (error instanceof ModelError) return error.message;
    throw error;
  }
  return 'loaded';
}

describe('a model directory', () => {
  it('loads the starter model', async () => {
    const model = await loadModel(STARTER);
    expect(model.spec).toMatchObject({ architecture: 'qwen3', qkNorm: true, vocabSize: 4096 });
    expect(model.tokenizerSize).toBe(4096);
    expect(model.texts).toEqual(await readModelTexts(STARTER));
    expect(model.tensors.length).toBe(2 + 11 * model.spec.layers);
    expect(model.generation.eosTokenIds.length).toBeGreaterThan(0);
    expect(model.digest).toMatch(/^[0-9a-f]{64}$/);
  });

  it('gives absolute offsets, in the order of the layers', async () => {
    const model = await loadModel(writeModel());
    const [first, second] = model.tensors;
    expect(first).toMatchObject({ name: 'model.embed_tokens.weight', dtype: 'F32', shape: [260, 8], file: 0 });
    expect(second?.offset).toBe((first?.offset ?? 0) + 260 * 8 * 4);
    expect(model.checkpointDType).toBe('float32');
    expect(model.warnings).toEqual([]);
  });

  it('warns of an option that it has never heard of', async () => {
    const model = await loadModel(writeModel({ config: { new_attention: true, unheard_of: null } }));
    expect(model.warnings).toEqual(['config.json: the option "new_attention" is not known and has no effect.']);
  });

  it('gives another digest for another weight', async () => {
    const directory = writeModel();
    const before = (await loadModel(directory)).digest;
    expect((await loadModel(directory)).digest).toBe(before);
    const path = join(directory, 'model.safetensors');
    const bytes = readFileSync(path);
    bytes[bytes.length - 1] = 1;
    writeFileSync(path, bytes);
    expect((await loadModel(directory)).digest).not.toBe(before);
  });

  it('reads the one file where an old index lies beside it', async () => {
    const directory = writeModel();
    const map = { weight_map: { 'model.norm.weight': 'model-00001-of-00002.safetensors' } };
    writeFileSync(join(directory, 'model.safetensors.index.json'), JSON.stringify(map));
    const { files } = await loadModel(directory);
    expect(files).toEqual([join(directory, 'model.safetensors')]);
  });

  it('reads shards by their index', async () => {
    const directory = writeModel({ tensors: null });
    const all = [...shapes()];
    const weightMap: Record<string, string> = {};
    for (const [i, part] of [all.slice(0, 5), all.slice(5)].entries()) {
      const name = `model-0000${i + 1}-of-00002.safetensors`;
      const { header, bytes } = plainHeader(part);
      writeSafetensors(join(directory, name), { __metadata__: { format: 'pt' }, ...header }, bytes);
      for (const [tensor] of part) weightMap[tensor] = name;
    }
    writeFileSync(join(directory, 'model.safetensors.index.json'), JSON.stringify({ weight_map: weightMap }));
    const model = await loadModel(directory);
    expect(model.files.length).toBe(2);
    expect(new Set(model.tensors.map((tensor) => tensor.file))).toEqual(new Set([0, 1]));
    const index = (map: Json): void =>
      writeFileSync(join(directory, 'model.safetensors.index.json'), JSON.stringify({ weight_map: map }));
    index({ ...weightMap, 'model.norm.weight': '../model-00001-of-00002.safetensors' });
    expect(await refusal(directory)).toContain('plain safetensors file name');
    index({ ...weightMap, 'model.absent.weight': 'model-00001-of-00002.safetensors' });
    expect(await refusal(directory)).toContain('model.absent.weight');
    index({ ...weightMap, 'model.norm.weight': 'model-00001-of-00002.safetensors' });
    expect(await refusal(directory)).toContain('does not place there');
    index({ ...weightMap, 'model.norm.weight': 'missing.safetensors' });
    expect(await refusal(directory)).toContain('missing.safetensors: is missing');
  });

  it('follows links to files, as hub caches have them, and to nothing else', async () => {
    const directory = writeModel();
    const blobs = temporaryDirectory();
    renameSync(join(directory, 'model.safetensors'), join(blobs, 'blob'));
    symlinkSync(join(blobs, 'blob'), join(directory, 'model.safetensors'));
    expect((await loadModel(directory)).files).toEqual([join(blobs, 'blob')]);
    rmSync(join(directory, 'model.safetensors'));
    symlinkSync(blobs, join(directory, 'model.safetensors'));
    expect(await refusal(directory)).toContain('not a regular file');
    // rmSync() of Node 24 follows links to folders.
    unlinkSync(join(directory, 'model.safetensors'));
    symlinkSync('/dev/zero', join(directory, 'model.safetensors'));
    expect(await refusal(directory)).toContain('not a regular file');
  });

  it('accepts a stored head beside tied embeddings, and old rotary buffers', async () => {
    const tied = { tie_word_embeddings: true };
    const tensors = new Map([...shapes(), ['model.layers.0.self_attn.rotary_emb.inv_freq', [2]] as [string, number[]]]);
    const model = await loadModel(writeModel({ config: tied, tensors }));
    expect(model.tensors.map((tensor) => tensor.name)).not.toContain('lm_head.weight');
  });

  it('refuses a stored head that tied embeddings would replace', async () => {
    const directory = writeModel({ config: { tie_word_embeddings: true }, tensors: shapes() });
    const file = join(directory, 'model.safetensors');
    const bytes = readFileSync(file);
    // The head is the last tensor.
    bytes[bytes.length - 1] = 1;
    writeFileSync(file, bytes);
    expect(await refusal(directory)).toContain('model.safetensors: has a "lm_head.weight" other than');
    const config = join(directory, 'config.json');
    writeFileSync(config, JSON.stringify({ ...CONFIG, tie_word_embeddings: false }));
    expect((await loadModel(directory)).spec.tiedEmbeddings).toBe(false);
  });

  it('takes a stored head of another dtype for another', async () => {
    const directory = writeModel({ config: { tie_word_embeddings: true }, tensors: shapes() });
    const { header, bytes } = plainHeader(shapes());
    const head = header['lm_head.weight']!;
    const [begin] = head.data_offsets;
    head.dtype = 'F16';
    head.data_offsets = [begin, (begin + bytes) / 2];
    writeSafetensors(join(directory, 'model.safetensors'), header, (begin + bytes) / 2);
    expect(await refusal(directory)).toContain('tie_word_embeddings is true');
  });

  const directories: [string, () => string, string][] = [
    ['a missing directory', () => '/nonexistent/model', 'does not exist'],
    ['a file that is no GGUF', () => join(writeModel(), 'config.json'), 'does not begin with GGUF'],
    ['no config', () => temporaryDirectory(), 'config.json: is missing in /'],
    [
      'a pointer of Git LFS for weights',
      () => withPointer('model.safetensors'),
      'model.safetensors: is a Git LFS pointer',
    ],
    [
      'a pointer of Git LFS for the tokenizer',
      () => withPointer('tokenizer.json'),
      'tokenizer.json: is a Git LFS pointer',
    ],
    [
      'a pointer of Git LFS for a GGUF file',
      () => join(withPointer('model.gguf'), 'model.gguf'),
      'model.gguf: is a Git LFS pointer',
    ],
    ['no tokenizer', withoutTokenizer, 'tokenizer.json: is missing in /'],
    ['no weights', () => writeModel({ tensors: null }), 'model.safetensors: is missing'],
    ['a missing tensor', () => writeModel({ tensors: [...shapes()].slice(1) }), 'embed_tokens'],
    [
      'a head that is missing',
      () => writeModel({ tensors: [...shapes({ tie_word_embeddings: true })] }),
      'lm_head.weight',
    ],
    [
      'a wrong shape',
      () => writeModel({ tensors: new Map([...shapes(), ['model.norm.weight', [4]]]) }),
      'model.norm.weight',
    ],
    [
      'an extra bias',
      () => writeModel({ tensors: new Map([...shapes(), ['model.layers.0.self_attn.q_proj.bias', [8]]]) }),
      'q_proj.bias',
    ],
    [
      'an adapter',
      () => writeModel({ tensors: new Map([...shapes(), ['base.lora_A.weight', [8]]]) }),
      'base.lora_A.weight',
    ],
  ];
  it.each(directories)('refuses %s', async (_, make, named) => {
    expect(await refusal(make())).toContain(named);
  });
});

function withoutTokenizer(): string {
  const directory = writeModel();
  unlinkSync(join(directory, 'tokenizer.json'));
  return directory;
}

function withPointer(name: string): string {
  const directory = writeModel();
  writeFileSync(join(directory, name), 'version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 123\n');
  return directory;
}

/** [what, header text or object, data bytes, the text in the refusal] */
const entry = (changes: Json = {}): Json => ({ dtype: 'F32', shape: [2], data_offsets: [0, 8], ...changes });
const headers: [string, unknown, number, string][] = [
  ['not JSON', '{"a":', 0, 'not valid JSON'],
  ['not an object', '[1]', 0, 'does not start with {'],
  ['depth', `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`, 0, 'nested deeper'],
  ['a name given twice', `{"a":${JSON.stringify(entry())},"a":${JSON.stringify(entry())}}`, 8, 'twice'],
  ['a name given twice, escaped', `{"a":${JSON.stringify(entry())},"\\u0061":${JSON.stringify(entry())}}`, 8, 'twice'],
  ['an entry that is no object', { a: 1 }, 0, 'must be an object'],
  ['an unknown dtype', { a: entry({ dtype: 'F13' }) }, 8, 'F13'],
  ['an inherited dtype', { a: entry({ dtype: 'toString' }) }, 8, 'toString'],
  ['a negative shape', { a: entry({ shape: [-2] }) }, 8, 'invalid shape'],
  ['a fractional shape', { a: entry({ shape: [0.5] }) }, 8, 'invalid shape'],
  ['a shape product beyond 2^53', { a: entry({ shape: [2 ** 30, 2 ** 30] }) }, 8, 'overflows'],
  ['a shape of 2^64 / 4 and more', { a: entry({ shape: [2 ** 31, 2 ** 31, 4] }) }, 8, 'overflows'],
  ['bytes that do not fit the shape', { a: entry({ shape: [3] }) }, 8, 'needs 12'],
  ['offsets in disorder', { a: entry({ data_offsets: [8, 0] }) }, 8, 'outside'],
  ['offsets beyond the file', { a: entry({ shape: [4], data_offsets: [0, 16] }) }, 8, 'truncated'],
  ['huge offsets', { a: entry({ data_offsets: [2 ** 53, 2 ** 53 + 8] }) }, 8, 'invalid data_offsets'],
  ['three offsets', { a: entry({ data_offsets: [0, 4, 8] }) }, 8, 'data_offsets'],
  ['overlap', { a: entry(), b: entry({ data_offsets: [4, 12] }) }, 12, 'overlaps'],
  ['the same bytes twice', { a: entry(), b: entry() }, 8, 'overlaps'],
  ['a hole', { a: entry(), b: entry({ data_offsets: [12, 20] }) }, 20, 'hole'],
  ['bytes behind the last tensor', { a: entry() }, 12, 'describes'],
];

describe('a hostile safetensors file', () => {
  it.each(headers)('is refused: %s', async (_, header, bytes, named) => {
    const directory = writeModel({ tensors: null });
    writeSafetensors(join(directory, 'model.safetensors'), header, bytes);
    const message = await refusal(directory);
    expect(message).toContain(named);
    expect(message.length).toBeLessThan(500);
  });

  it.each([2n ** 63n, 2n ** 64n - 1n, 1_000_000n, 100n * 1024n * 1024n + 1n])(
    'is refused: header length %d',
    async (length) => {
      const directory = writeModel({ tensors: null });
      const bytes = Buffer.alloc(64);
      bytes.writeBigUInt64LE(length);
      writeFileSync(join(directory, 'model.safetensors'), bytes);
      expect(await refusal(directory)).toContain('header of');
    },
  );

  it('is refused: truncated anywhere', async () => {
    const directory = writeModel();
    const path = join(directory, 'model.safetensors');
    const { length } = readFileSync(path);
    for (const size of [length - 1, Math.floor(length / 2), 100, 8, 7, 0]) {
      truncateSync(path, size);
      expect(await refusal(directory)).not.toBe('loaded');
    }
  });

  it('is refused: grown', async () => {
    const directory = writeModel();
    appendFileSync(join(directory, 'model.safetensors'), 'x');
    expect(await refusal(directory)).toContain('describes');
  });
});

describe('a hostile tokenizer.json', () => {
  const base = (): Json => byteTokenizer().json;
  const model = (changes: Json): Json => ({ ...base(), model: { ...(base()['model'] as Json), ...changes } });
  const vocab = (changes: Json): Json =>
    model({ vocab: { ...((base()['model'] as Json)['vocab'] as Json), ...changes } });
  const added = (...tokens: Json[]): Json => ({
    ...base(),
    added_tokens: [...(base()['added_tokens'] as Json[]), ...tokens],
  });
  const cases: [string, Json, string][] = [
    ['an id above the embedding', added({ id: 260, content: '<x>' }), 'the embedding has 260 rows'],
    ['an id given twice', vocab({ zz: 3 }), 'the id 3'],
    ['an added token in the place of another', added({ id: 256, content: '<x>' }), 'the id 256'],
    ['a gap', vocab({ '!': undefined }), 'no token of id'],
    ['a text added twice', added({ id: 256, content: '<s>' }), 'twice'],
    ['a negative id', vocab({ zz: -1 }), 'the id -1'],
    ['a fractional id', vocab({ zz: 1.5 }), 'the id 1.5'],
    ['an empty added token', added({ id: 256, content: '' }), 'content'],
    [
      'very many added tokens',
      { ...base(), added_tokens: Array.from({ length: 70_000 }, (_, id) => ({ id, content: `t${id}` })) },
      'added_tokens',
    ],
    ['another model', model({ type: 'Unigram' }), 'Unigram'],
    ['no vocabulary', model({ vocab: null }), 'model.vocab'],
    ['no merges', model({ merges: 'x' }), 'model.merges'],
    ['a merge of one text', model({ merges: [['h']] }), 'merge 0'],
    ['a merge of three texts', model({ merges: ['h i', 'h i a'] }), 'merge 1'],
    ['a merge that is no text', model({ merges: [['h', 'i'], 7] }), 'merge 1'],
    ['a merge that makes no token', model({ merges: ['h i', 'h a'] }), '"ha" is not in model.vocab'],
    ['merges in two ways', model({ merges: [['h', 'i'], 'h i'] }), 'model.merges must be texts or pairs'],
    ['a merge of no token', model({ merges: [['hi', 'zz']] }), '"zz" is not in model.vocab'],
  ];
  it.each(cases)('is refused: %s', async (_, tokenizer, named) => {
    expect(await refusal(writeModel({ tokenizer }))).toContain(named);
  });

  it('is refused when larger than 64 MiB, without being parsed', async () => {
    const directory = writeModel();
    truncateSync(join(directory, 'tokenizer.json'), 64 * 1024 * 1024 + 1);
    expect(await refusal(directory)).toContain('larger than');
  });

  it('is refused as a directory', async () => {
    const directory = writeModel();
    rmSync(join(directory, 'tokenizer.json'));
    mkdirSync(join(directory, 'tokenizer.json'));
    expect(await refusal(directory)).toContain('not a regular file');
  });
});
