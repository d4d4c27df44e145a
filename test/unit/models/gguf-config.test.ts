/** What the metadata of a GGUF file says of a model, and what is refused by its key. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ModelError, UnsupportedModelError } from '../../../src/control/models/errors.ts';
import { storedBytes, type StorageName } from '../../../src/control/models/gguf/format.ts';
import { ggufName } from '../../../src/control/models/gguf/tensors.ts';
import { loadModel, readModelTexts } from '../../../src/control/models/load.ts';
import { arrayEntry, entry, ggufFile, type GgufData } from '../../fixtures/gguf-writer.ts';
import { hashUint32 } from '../../fixtures/hash-weights.ts';
import { byteCharacters, temporaryDirectory } from './model-directory.ts';

const TOKENS = [...byteCharacters(), '<s>', '</s>', '<|eot_id|>', 'hi', '[PAD260]'];
const KINDS = [...byteCharacters().map(() => 1), 3, 3, 3, 1, 5];

type Scalar = ['uint32' | 'float32' | 'string' | 'bool', number | string | boolean];

/** A llama of two layers; null takes a key away. */
function keys(changes: Record<string, Scalar | null> = {}): Buffer[] {
  const all: Record<string, Scalar | null> = {
    'general.architecture': ['string', 'llama'],
    'llama.block_count': ['uint32', 2],
    'llama.context_length': ['uint32', 64],
    'llama.embedding_length': ['uint32', 8],
    'llama.feed_forward_length': ['uint32', 16],
    'llama.attention.head_count': ['uint32', 2],
    'llama.attention.head_count_kv': ['uint32', 1],
    'llama.attention.layer_norm_rms_epsilon': ['float32', 1e-5],
    'tokenizer.ggml.model': ['string', 'gpt2'],
    'tokenizer.ggml.pre': ['string', 'llama-bpe'],
    'tokenizer.ggml.bos_token_id': ['uint32', 256],
    'tokenizer.ggml.eos_token_id': ['uint32', 257],
    'tokenizer.chat_template': ['string', '{{ bos_token }}{{ messages[0].content }}'],
    ...changes,
  };
  return Object.entries(all).flatMap(([key, value]) => (value ? [entry(key, value[0], value[1])] : []));
}

/** The keys of the architecture under another name. */
function renamed(architecture: string): Record<string, Scalar> {
  const counts = { block_count: 2, context_length: 64, embedding_length: 8, feed_forward_length: 16 };
  const heads = { 'attention.head_count': 2, 'attention.head_count_kv': 1 };
  const whole = Object.entries({ ...counts, ...heads }).map(([key, value]): [string, Scalar] => [
    `${architecture}.${key}`,
    ['uint32', value],
  ]);
  return { ...Object.fromEntries(whole), [`${architecture}.attention.layer_norm_rms_epsilon`]: ['float32', 1e-5] };
}

/** Over the 64 positions of `keys`. */
function yarn(factor = 4): Record<string, Scalar> {
  return { 'llama.rope.scaling.type': ['string', 'yarn'], 'llama.rope.scaling.factor': ['float32', factor] };
}

const YARN = {
  type: 'yarn',
  factor: 4,
  betaFast: 32,
  betaSlow: 1,
  truncate: true,
  attentionFactor: 0.1 * Math.log(4) + 1,
};

const LISTS = {
  tokens: arrayEntry('tokenizer.ggml.tokens', 'string', TOKENS),
  kinds: arrayEntry('tokenizer.ggml.token_type', 'int32', KINDS),
  merges: arrayEntry('tokenizer.ggml.merges', 'string', ['h i']),
};

function zeros(name: string, shape: number[], type: StorageName = 'F32'): GgufData {
  const elements = shape.reduce((product, size) => product * size, 1);
  return { name, type, shape, data: Buffer.alloc(storedBytes(type, elements)) };
}

function layer(index: number): GgufData[] {
  const blk = (name: string, shape: number[]): GgufData => zeros(`blk.${index}.${name}.weight`, shape);
  return [
    blk('attn_norm', [8]),
    blk('ffn_norm', [8]),
    blk('attn_q', [8, 8]),
    blk('attn_k', [4, 8]),
    blk('attn_v', [4, 8]),
    blk('attn_output', [8, 8]),
    blk('ffn_gate', [16, 8]),
    blk('ffn_up', [16, 8]),
    blk('ffn_down', [8, 16]),
  ];
}

const TENSORS = [
  zeros('token_embd.weight', [TOKENS.length, 8]),
  zeros('output_norm.weight', [8]),
  ...layer(0),
  ...layer(1),
];

function write(entries: Buffer[], tensors: GgufData[] = TENSORS): string {
  const path = join(temporaryDirectory(), 'Tiny-Llama.gguf');
  writeFileSync(path, ggufFile(entries, tensors));
  return path;
}

function file(
  changes: Record<string, Scalar | null> = {},
  tensors?: GgufData[],
  lists: Partial<typeof LISTS> = {},
): string {
  return write([...keys(changes), ...Object.values({ ...LISTS, ...lists })], tensors);
}

async function refusal(path: string): Promise<string> {
  try {
    await loadModel(path);
  } catch (error) {
    if (error instanceof ModelError) return error.message;
    throw error;
  }
  return 'loaded';
}

function factors(values: number[]): GgufData {
  return {
    name: 'rope_freqs.weight',
    type: 'F32',
    shape: [values.length],
    data: Buffer.from(Float32Array.from(values).buffer),
  };
}

describe('a GGUF model', () => {
  it('is read: dimensions, tied head, heads, names', async () => {
    const path = file();
    const model = await loadModel(path);
    expect(model.texts).toEqual(await readModelTexts(path));
    expect(model).toMatchObject({
      path,
      name: 'Tiny-Llama',
      checkpointDType: 'float32',
      tokenizerSize: 260,
      maxPosition: 64,
      warnings: [],
    });
    expect(model.spec).toEqual({
      architecture: 'llama',
      vocabSize: 261,
      hiddenSize: 8,
      intermediateSize: 16,
      layers: 2,
      heads: 2,
      kvHeads: 1,
      headDim: 4,
      rmsNormEps: 1e-5,
      ropeTheta: 10_000,
      ropeScaling: { type: 'none' },
      maxPosition: 64,
      slidingWindow: 0,
      windowLayers: new Uint8Array(2),
      qkvBias: false,
      outputBias: false,
      mlpBias: false,
      qkNorm: false,
      tiedEmbeddings: true,
    });
    expect(model.tensors.length).toBe(TENSORS.length);
    const of = (name: string) =>
      model.tensors.find((tensor) => tensor.name === `model.layers.1.self_attn.${name}.weight`);
    expect(of('q_proj')).toMatchObject({ interleaved: 4, shape: [8, 8], dtype: 'F32', file: 0 });
    expect(of('k_proj')).toMatchObject({ interleaved: 4, shape: [4, 8] });
    expect(of('v_proj')).not.toHaveProperty('interleaved');
  });

  it('says its tokens: special ones, ends of a turn, padding left out, the template', async () => {
    const { tokenizer, generation } = await readModelTexts(
      file({ 'general.sampling.temp': ['float32', 0.6], 'general.sampling.top_k': ['uint32', 20] }),
    );
    expect(generation).toEqual({ temperature: 0.6, topK: 20, eosTokenIds: [257, 258] });
    expect(tokenizer.specialTokens).toEqual({ bos_token: '<s>', eos_token: '</s>' });
    expect(tokenizer.addedTokens.map(({ id, special }) => [id, special])).toEqual([
      [256, true],
      [257, true],
      [258, true],
    ]);
    expect(tokenizer.vocabulary).toEqual(TOKENS.slice(0, -1));
    expect(tokenizer.chatTemplate).toContain('messages[0]');
  });

  it.each<[string, Record<string, Scalar | null>, GgufData[], object]>([
    ['a head of its own', {}, [...TENSORS, zeros('output.weight', [261, 8])], { tiedEmbeddings: false }],
    [
      'biases',
      {},
      [
        ...TENSORS,
        ...[0, 1].flatMap((i) => [
          zeros(`blk.${i}.attn_q.bias`, [8]),
          zeros(`blk.${i}.attn_k.bias`, [4]),
          zeros(`blk.${i}.attn_v.bias`, [4]),
        ]),
      ],
      { qkvBias: true },
    ],
    [
      'linear scaling',
      { 'llama.rope.scaling.type': ['string', 'linear'], 'llama.rope.scaling.factor': ['float32', 4] },
      TENSORS,
      { ropeScaling: { type: 'linear', factor: 4 } },
    ],
    [
      'scaling without a type',
      { 'llama.rope.scale_linear': ['float32', 2] },
      TENSORS,
      { ropeScaling: { type: 'linear', factor: 2 } },
    ],
    [
      'a factor that is switched off',
      { 'llama.rope.scaling.type': ['string', 'none'], 'llama.rope.scaling.factor': ['float32', 4] },
      TENSORS,
      { ropeScaling: { type: 'none' } },
    ],
    ['yarn', yarn(), TENSORS, { ropeScaling: { ...YARN, originalMaxPosition: 64 }, maxPosition: 256 }],
    [
      'yarn of a size',
      { ...yarn(), 'llama.rope.scaling.original_context_length': ['uint32', 32] },
      TENSORS,
      { ropeScaling: { ...YARN, originalMaxPosition: 32 }, maxPosition: 128 },
    ],
    [
      'yarn of other turns',
      {
        ...yarn(),
        'llama.rope.scaling.yarn_beta_fast': ['float32', 16],
        'llama.rope.scaling.yarn_beta_slow': ['float32', 2],
      },
      TENSORS,
      { ropeScaling: { ...YARN, betaFast: 16, betaSlow: 2, originalMaxPosition: 64 } },
    ],
    ['yarn that changes nothing', yarn(1), TENSORS, { ropeScaling: { type: 'none' }, maxPosition: 64 }],
    [
      'factors of frequencies',
      {},
      [...TENSORS, factors([1, 8])],
      { ropeScaling: { type: 'factors', factors: Float32Array.of(1, 8) } },
    ],
    [
      'a sliding window',
      { 'llama.attention.sliding_window': ['uint32', 16] },
      TENSORS,
      { slidingWindow: 16, windowLayers: Uint8Array.of(1, 1) },
    ],
    ['base frequency', { 'llama.rope.freq_base': ['float32', 5e5] }, TENSORS, { ropeTheta: 5e5 }],
    [
      'heads without a key count',
      { 'llama.attention.head_count_kv': null, 'llama.attention.head_count': ['uint32', 2] },
      TENSORS.map((t) => (/attn_[kv]\./.test(t.name) ? zeros(t.name, [8, 8]) : t)),
      { kvHeads: 2 },
    ],
  ])('is read with %s', async (_, changes, tensors, spec) => {
    expect((await loadModel(file(changes, tensors))).spec).toMatchObject(spec);
  });

  it('has the same digest under another name, and another one with another weight', async () => {
    const one = await loadModel(file());
    expect((await loadModel(file())).digest).toBe(one.digest);
    const changed = TENSORS.map((tensor, i) =>
      i === TENSORS.length - 1 ? { ...tensor, data: Buffer.alloc(tensor.data.length, 1) } : tensor,
    );
    expect((await loadModel(file({}, changed))).digest).not.toBe(one.digest);
  });

  it('warns of a key that it has never heard of', async () => {
    const { warnings } = await loadModel(file({ 'llama.new_attention': ['uint32', 1], 'other.key': ['uint32', 1] }));
    expect(warnings).toEqual(['Tiny-Llama.gguf: the key "llama.new_attention" is not known and has no effect.']);
  });

  it('names tensors as llama.cpp does', () => {
    expect(ggufName('model.layers.12.mlp.down_proj.bias')).toBe('blk.12.ffn_down.bias');
    expect(ggufName('lm_head.weight')).toBe('output.weight');
  });

  it.each<[string, Record<string, Scalar | null>, string]>([
    ['no architecture', { 'general.architecture': null }, 'general.architecture is missing'],
    [
      'another architecture',
      { 'general.architecture': ['string', 'gemma3'] },
      'general.architecture "gemma3" is not supported',
    ],
    ['attention to both sides', { 'llama.attention.causal': ['bool', false] }, 'llama.attention.causal false is not'],
    [
      'an inherited architecture',
      { 'general.architecture': ['string', 'constructor'] },
      'general.architecture "constructor"',
    ],
    ['an adapter', { 'general.type': ['string', 'adapter'] }, 'general.type "adapter"'],
    ['a part of a file', { 'split.count': ['uint32', 3] }, 'split.count'],
    ['no layers', { 'llama.block_count': ['uint32', 0] }, 'llama.block_count'],
    ['very many layers', { 'llama.block_count': ['uint32', 2 ** 31] }, 'llama.block_count'],
    [
      'heads that do not divide',
      { 'llama.attention.head_count': ['uint32', 3], 'llama.attention.head_count_kv': null },
      'llama.embedding_length',
    ],
    [
      'more than 32 heads of one key head',
      { 'llama.attention.head_count': ['uint32', 64], 'llama.attention.key_length': ['uint32', 2] },
      'llama.attention.head_count_kv',
    ],
    ['more positions than native code takes', { 'llama.context_length': ['uint32', 2 ** 25] }, 'llama.context_length'],
    [
      'key heads that do not divide',
      { 'llama.attention.head_count': ['uint32', 4], 'llama.attention.head_count_kv': ['uint32', 3] },
      'llama.attention.head_count_kv',
    ],
    ['another size of values', { 'llama.attention.value_length': ['uint32', 6] }, 'llama.attention.value_length'],
    ['a part of the head rotated', { 'llama.rope.dimension_count': ['uint32', 2] }, 'llama.rope.dimension_count'],
    ['longrope', { 'llama.rope.scaling.type': ['string', 'longrope'] }, 'llama.rope.scaling.type "longrope"'],
    ['yarn that shrinks', yarn(0.5), 'llama.rope.scaling.factor'],
    [
      'yarn of disordered turns',
      { ...yarn(), 'llama.rope.scaling.yarn_beta_fast': ['float32', 0.5] },
      'llama.rope.scaling.yarn_beta_fast',
    ],
    [
      'yarn with a factor of attention',
      { ...yarn(), 'llama.rope.scaling.yarn_attn_factor': ['float32', 0.5] },
      'llama.rope.scaling.yarn_attn_factor',
    ],
    ['yarn of one frequency', { ...yarn(), 'llama.rope.freq_base': ['float32', 1] }, 'llama.rope.freq_base'],
    [
      'experts, but not how many are used',
      { 'llama.expert_count': ['uint32', 8] },
      'llama.expert_used_count is missing',
    ],
    [
      'experts beyond counting',
      { 'llama.expert_count': ['uint32', 4096], 'llama.block_count': ['uint32', 9] },
      'llama.expert_count 4096 in each of 9 layers',
    ],
    [
      'experts by another rule',
      { 'llama.expert_count': ['uint32', 8], 'llama.expert_gating_func': ['uint32', 2] },
      'llama.expert_gating_func 2',
    ],
    ['shared experts', { 'llama.expert_shared_count': ['uint32', 1] }, 'llama.expert_shared_count 1'],
    [
      'an architecture of experts without any',
      { 'general.architecture': ['string', 'qwen3moe'], ...renamed('qwen3moe') },
      'qwen3moe.expert_count is missing or 0',
    ],
    ['a logit scale', { 'llama.logit_scale': ['float32', 0.5] }, 'llama.logit_scale'],
    [
      'no epsilon',
      { 'llama.attention.layer_norm_rms_epsilon': null },
      'llama.attention.layer_norm_rms_epsilon is missing',
    ],
    ['a count that is text', { 'llama.block_count': ['string', '2'] }, 'llama.block_count'],
    ['another tokenizer', { 'tokenizer.ggml.model': ['string', 't5'] }, 'tokenizer.ggml.model "t5"'],
    ['no tokenizer', { 'tokenizer.ggml.model': null }, 'tokenizer.ggml.model null'],
    [
      'an unknown pre-tokenizer',
      { 'tokenizer.ggml.pre': ['string', 'default'] },
      'tokenizer.ggml.pre "default" is not supported',
    ],
    ['no pre-tokenizer', { 'tokenizer.ggml.pre': null }, 'tokenizer.ggml.pre null'],
    ['a role without a token', { 'tokenizer.ggml.eos_token_id': ['uint32', 261] }, 'tokenizer.ggml.eos_token_id'],
    [
      'an end that is asked for and missing',
      { 'tokenizer.ggml.eos_token_id': null, 'tokenizer.ggml.add_eos_token': ['bool', true] },
      'tokenizer.ggml.add_eos_token',
    ],
    [
      'a tokenizer.json that is none',
      { 'tokenizer.huggingface.json': ['string', '{"a":'] },
      'tokenizer.huggingface.json',
    ],
    ['a template that is no text', { 'tokenizer.chat_template': ['uint32', 1] }, 'tokenizer.chat_template'],
  ])('is refused with %s', async (_, changes, named) => {
    expect(await refusal(file(changes))).toContain(`Tiny-Llama.gguf: ${named}`);
  });

  it.each<[string, GgufData[], string]>([
    ['a missing tensor', TENSORS.slice(0, -1), 'has no tensor "blk.1.ffn_down.weight"'],
    ['no embedding', TENSORS.slice(1), 'tensor "token_embd.weight" is missing'],
    [
      'a tensor of another architecture',
      [...TENSORS, zeros('blk.0.attn_sinks.weight', [8])],
      '"blk.0.attn_sinks.weight", which this architecture',
    ],
    [
      'a wrong shape',
      [...TENSORS.slice(0, -1), zeros('blk.1.ffn_down.weight', [16, 8])],
      '"blk.1.ffn_down.weight" has shape [16,8]',
    ],
    ['too few rope factors', [...TENSORS, factors([1])], 'rope_freqs.weight'],
    ['a rope factor of 0', [...TENSORS, factors([1, 0])], 'rope_freqs.weight'],
    ['a rope factor that is no number', [...TENSORS, factors([1, NaN])], 'rope_freqs.weight'],
  ])('is refused with %s', async (_, tensors, named) => {
    expect(await refusal(file({}, tensors))).toContain(named);
  });

  it.each<[string, Partial<typeof LISTS>, string]>([
    ['no tokens', { tokens: arrayEntry('tokenizer.ggml.tokens', 'string', []) }, 'tokenizer.ggml.tokens is empty'],
    [
      'tokens that are numbers',
      { tokens: arrayEntry('tokenizer.ggml.tokens', 'int32', [1]) },
      'tokenizer.ggml.tokens must be',
    ],
    [
      'a token twice',
      { tokens: arrayEntry('tokenizer.ggml.tokens', 'string', [...TOKENS.slice(0, 259), '!', 'x']) },
      'tokenizer.ggml.tokens has "!"',
    ],
    [
      'more tokens than rows',
      { tokens: arrayEntry('tokenizer.ggml.tokens', 'string', [...TOKENS, 'x']) },
      'has 262 tokens, but the embedding has 261 rows',
    ],
    [
      'a token of 5000 characters',
      { tokens: arrayEntry('tokenizer.ggml.tokens', 'string', [...TOKENS.slice(0, 260), 'x'.repeat(5000)]) },
      'a token of 5000 characters: 260',
    ],
    [
      'too few kinds',
      { kinds: arrayEntry('tokenizer.ggml.token_type', 'int32', [1]) },
      'tokenizer.ggml.token_type has 1 entries',
    ],
    [
      'merges of one text',
      { merges: arrayEntry('tokenizer.ggml.merges', 'string', ['h i', 'hi']) },
      'tokenizer.ggml.merges has "hi" at 1',
    ],
    [
      'merges that make no token',
      { merges: arrayEntry('tokenizer.ggml.merges', 'string', ['h j']) },
      'tokenizer.ggml.merges makes "hj" at 0',
    ],
  ])('is refused with %s', async (_, lists, named) => {
    expect(await refusal(file({}, TENSORS, lists))).toContain(named);
  });

  /** Q5_0 has 22 bytes for 32 elements. */
  const Q5_0 = 6;

  it('refuses blocks of types that only others read', async () => {
    const path = file(
      {},
      TENSORS.map((tensor) => (tensor.name === 'blk.0.ffn_down.weight' ? zeros(tensor.name, [8, 32]) : tensor)),
    );
    const bytes = readFileSync(path);
    const name = bytes.indexOf('blk.0.ffn_down.weight');
    bytes.writeUInt32LE(Q5_0, name + 'blk.0.ffn_down.weight'.length + 4 + 16);
    writeFileSync(path, bytes);
    expect(await refusal(path)).toContain('tensor "blk.0.ffn_down.weight" has type Q5_0; F32, F16,');
    await expect(loadModel(path)).rejects.toThrow(UnsupportedModelError);
  });

  it.each<[string, Record<string, Scalar | null>, boolean]>([
    ['another architecture', { 'general.architecture': ['string', 'gemma3'] }, true],
    ['shared experts', { 'llama.expert_shared_count': ['uint32', 8] }, true],
    ['longrope', { 'llama.rope.scaling.type': ['string', 'longrope'] }, true],
    ['a part of the head rotated', { 'llama.rope.dimension_count': ['uint32', 2] }, true],
    ['no layers', { 'llama.block_count': ['uint32', 0] }, false],
    ['no architecture', { 'general.architecture': null }, false],
    ['a part of a file', { 'split.count': ['uint32', 3] }, false],
    ['an unknown pre-tokenizer', { 'tokenizer.ggml.pre': ['string', 'default'] }, false],
  ])('tells what another engine may run from what is wrong: %s', async (_, changes, unsupported) => {
    const error: unknown = await loadModel(file(changes)).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(ModelError);
    expect(error instanceof UnsupportedModelError).toBe(unsupported);
  });

  it('refuses a vector in blocks', async () => {
    const tensors = TENSORS.map((tensor) =>
      tensor.name === 'output_norm.weight' ? zeros(tensor.name, [32], 'Q8_0') : tensor,
    );
    expect(await refusal(file({}, tensors))).toContain('output_norm.weight');
  });
});

describe('a GGUF file with wrong bytes', () => {
  it('is refused by a ModelError, or read', async () => {
    const path = file();
    const bytes = readFileSync(path);
    const { length } = bytes;
    const places = hashUint32('places', 600);
    const values = hashUint32('values', 600);
    const outcomes = { read: 0, refused: 0 };
    for (const [i, place] of places.entries()) {
      const wrong = Buffer.from(bytes);
      // Often a whole byte of a length, a count or a type; the header is what comes first.
      wrong[place % (i % 2 === 0 ? length : 3000)] = [0, 0xff, 0x80, values[i]! & 255][i % 4]!;
      writeFileSync(path, wrong);
      const message = await refusal(path);
      outcomes[message === 'loaded' ? 'read' : 'refused']++;
    }
    expect(outcomes.refused).toBeGreaterThan(100);
    expect(outcomes.read).toBeGreaterThan(20);
  });
});
