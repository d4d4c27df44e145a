/**
 * A model directory whose every next token is a function of the last one: embeddings are one-hot, attention and MLP add
 * nothing, and lm_head is a table. So the text a server must produce is known to the byte, and each byte is a token.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const HIDDEN = 320;
const INTERMEDIATE = 64;
const HEADS = 5;
/** Ids 0..255 are bytes. */
export const USER = 256;
export const ASSISTANT = 257;
export const END = 258;
const VOCAB = 259;
/** Large enough that sampling at temperature 1 never takes another token. */
const GAIN = 8;

const TEMPLATE =
  '{% for message in messages %}<|user|>{{ message.content }}{% endfor %}' +
  '{% if add_generation_prompt %}<|assistant|>{% endif %}';

/** Writes a model that answers every chat with `reply`. No byte may occur twice in it. */
export function writeScriptedModel(directory: string, reply: string): void {
  const bytes = [...Buffer.from(reply)];
  if (new Set(bytes).size !== bytes.length) throw new Error('A byte occurs twice: the next one would be ambiguous.');
  const next = Array.from({ length: VOCAB }, () => END);
  [ASSISTANT, ...bytes].forEach((token, at) => (next[token] = bytes[at] ?? END));
  // With ignore_eos the reply begins again.
  next[END] = bytes[0] ?? END;
  mkdirSync(directory, { recursive: true });
  const json = (name: string, value: unknown) => writeFileSync(join(directory, name), JSON.stringify(value));
  json('config.json', config());
  json('generation_config.json', { eos_token_id: END });
  json('tokenizer.json', tokenizer());
  json('tokenizer_config.json', { eos_token: '<|end|>', chat_template: TEMPLATE });
  writeFileSync(join(directory, 'model.safetensors'), safetensors(weights(next)));
}

function config(): object {
  return {
    architectures: ['LlamaForCausalLM'],
    model_type: 'llama',
    torch_dtype: 'float32',
    vocab_size: VOCAB,
    hidden_size: HIDDEN,
    intermediate_size: INTERMEDIATE,
    num_hidden_layers: 1,
    num_attention_heads: HEADS,
    num_key_value_heads: HEADS,
    hidden_act: 'silu',
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-6,
    rope_theta: 10_000,
    tie_word_embeddings: false,
    eos_token_id: END,
  };
}

interface Tensor {
  shape: number[];
  values: Float32Array;
}

function weights(next: number[]): Record<string, Tensor> {
  const zeros = (...shape: number[]): Tensor => ({ shape, values: new Float32Array(shape.reduce((a, b) => a * b, 1)) });
  const ones = (size: number): Tensor => ({ shape: [size], values: new Float32Array(size).fill(1) });
  const embed = zeros(VOCAB, HIDDEN);
  const head = zeros(VOCAB, HIDDEN);
  next.forEach((target, token) => {
    embed.values[token * HIDDEN + token] = 1;
    head.values[target * HIDDEN + token] = GAIN;
  });
  const layer = 'model.layers.0';
  return {
    'model.embed_tokens.weight': embed,
    'lm_head.weight': head,
    'model.norm.weight': ones(HIDDEN),
    [`${layer}.input_layernorm.weight`]: ones(HIDDEN),
    [`${layer}.post_attention_layernorm.weight`]: ones(HIDDEN),
    [`${layer}.self_attn.q_proj.weight`]: zeros(HIDDEN, HIDDEN),
    [`${layer}.self_attn.k_proj.weight`]: zeros(HIDDEN, HIDDEN),
    [`${layer}.self_attn.v_proj.weight`]: zeros(HIDDEN, HIDDEN),
    [`${layer}.self_attn.o_proj.weight`]: zeros(HIDDEN, HIDDEN),
    [`${layer}.mlp.gate_proj.weight`]: zeros(INTERMEDIATE, HIDDEN),
    [`${layer}.mlp.up_proj.weight`]: zeros(INTERMEDIATE, HIDDEN),
    [`${layer}.mlp.down_proj.weight`]: zeros(HIDDEN, INTERMEDIATE),
  };
}

function safetensors(tensors: Record<string, Tensor>): Buffer {
  const header: Record<string, object> = {};
  let offset = 0;
  for (const [name, { shape, values }] of Object.entries(tensors)) {
    header[name] = { dtype: 'F32', shape, data_offsets: [offset, offset + values.byteLength] };
    offset += values.byteLength;
  }
  const text = JSON.stringify(header);
  const json = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  return Buffer.concat([length, json, ...Object.values(tensors).map(({ values }) => Buffer.from(values.buffer))]);
}

function tokenizer(): object {
  const vocab = Object.fromEntries(byteLetters().map((letter, byte) => [letter, byte]));
  const special = ['<|user|>', '<|assistant|>', '<|end|>'];
  const flags = { special: true, single_word: false, lstrip: false, rstrip: false, normalized: false };
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: special.map((content, at) => ({ id: USER + at, content, ...flags })),
    normalizer: null,
    pre_tokenizer: byteLevel,
    post_processor: null,
    decoder: byteLevel,
    model: { type: 'BPE', dropout: null, unk_token: null, fuse_unk: false, byte_fallback: false, vocab, merges: [] },
  };
}

/** The printable letter by which byte-level vocabularies write each byte. */
function byteLetters(): string[] {
  const printable = (byte: number) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let extra = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(printable(byte) ? byte : extra++));
}
