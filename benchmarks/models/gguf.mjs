/**
 * Writes one GGUF file (version 3) of a Qwen3 model: metadata, tensor table, aligned tensors. Norms and routers are
 * F32, matrices BF16, Q8_0 or Q4_0.
 */
import { writeSync } from 'node:fs';
import {
  DEFAULT_ALIGNMENT,
  GGUF_MAGIC,
  GGUF_VERSION,
  STORAGE_TYPES,
  storedBytes,
  VALUE_TYPES,
} from '../../dist/control/models/gguf/format.js';
import { TOKEN } from '../../dist/control/models/gguf/vocabulary.js';
import { elements, RMS_EPS, ROPE_THETA } from './shapes.mjs';
import { CHAT_TEMPLATE, vocabulary } from './tokenizer.mjs';

const ALIGNMENT = DEFAULT_ALIGNMENT;
/** By format: the type of the matrices, and llama.cpp's number of such a file. */
const FORMATS = {
  bf16: { type: 'BF16', file: 32 },
  q8_0: { type: 'Q8_0', file: 7 },
  q4_0: { type: 'Q4_0', file: 2 },
};

function u32(value) {
  const buffer = Buffer.alloc(4);
  buffer.writeUInt32LE(value);
  return buffer;
}

function u64(value) {
  const buffer = Buffer.alloc(8);
  buffer.writeBigUInt64LE(BigInt(value));
  return buffer;
}

function f32(value) {
  const buffer = Buffer.alloc(4);
  buffer.writeFloatLE(value);
  return buffer;
}

function text(value) {
  const bytes = Buffer.from(value);
  return Buffer.concat([u64(bytes.length), bytes]);
}

const entry = {
  u32: (key, value) => Buffer.concat([text(key), u32(VALUE_TYPES.uint32), u32(value)]),
  f32: (key, value) => Buffer.concat([text(key), u32(VALUE_TYPES.float32), f32(value)]),
  bool: (key, value) => Buffer.concat([text(key), u32(VALUE_TYPES.bool), Buffer.from([value ? 1 : 0])]),
  string: (key, value) => Buffer.concat([text(key), u32(VALUE_TYPES.string), text(value)]),
  strings: (key, values) =>
    Buffer.concat([
      text(key),
      u32(VALUE_TYPES.array),
      u32(VALUE_TYPES.string),
      u64(values.length),
      ...values.map(text),
    ]),
  integers: (key, values) =>
    Buffer.concat([text(key), u32(VALUE_TYPES.array), u32(VALUE_TYPES.int32), u64(values.length), ...values.map(u32)]),
};

function tokenizerEntries(shape) {
  const { tokens, merges, specials } = vocabulary(shape);
  const padding = Array.from({ length: shape.vocab - tokens.length }, (_, i) => `[PAD${tokens.length + i}]`);
  const firstSpecial = tokens.length - specials.length;
  const typeOf = (id) => (id < firstSpecial ? TOKEN.normal : id < tokens.length ? TOKEN.control : TOKEN.unused);
  const idOf = (content) => specials.find((special) => special.content === content).id;
  return [
    entry.string('tokenizer.ggml.model', 'gpt2'),
    entry.string('tokenizer.ggml.pre', 'qwen2'),
    entry.strings('tokenizer.ggml.tokens', [...tokens, ...padding]),
    entry.integers(
      'tokenizer.ggml.token_type',
      Array.from({ length: shape.vocab }, (_, id) => typeOf(id)),
    ),
    entry.strings('tokenizer.ggml.merges', merges),
    entry.u32('tokenizer.ggml.eos_token_id', idOf('<|im_end|>')),
    entry.u32('tokenizer.ggml.padding_token_id', idOf('<|endoftext|>')),
    entry.bool('tokenizer.ggml.add_bos_token', false),
    entry.string('tokenizer.chat_template', CHAT_TEMPLATE),
  ];
}

function metadata(name, shape, format) {
  const architecture = shape.experts ? 'qwen3moe' : 'qwen3';
  return [
    entry.string('general.architecture', architecture),
    entry.string('general.name', name),
    entry.u32('general.alignment', ALIGNMENT),
    entry.u32('general.file_type', FORMATS[format].file),
    entry.u32(`${architecture}.block_count`, shape.layers),
    entry.u32(`${architecture}.context_length`, shape.context),
    entry.u32(`${architecture}.embedding_length`, shape.hidden),
    entry.u32(`${architecture}.feed_forward_length`, shape.ffn),
    entry.u32(`${architecture}.attention.head_count`, shape.heads),
    entry.u32(`${architecture}.attention.head_count_kv`, shape.kvHeads),
    entry.u32(`${architecture}.attention.key_length`, shape.headDim),
    entry.u32(`${architecture}.attention.value_length`, shape.headDim),
    entry.f32(`${architecture}.attention.layer_norm_rms_epsilon`, RMS_EPS),
    entry.f32(`${architecture}.rope.freq_base`, ROPE_THETA),
    ...expertEntries(shape),
    ...tokenizerEntries(shape),
  ];
}

function expertEntries({ experts }) {
  if (!experts) return [];
  return [
    entry.u32('qwen3moe.expert_count', experts.count),
    entry.u32('qwen3moe.expert_used_count', experts.used),
    entry.u32('qwen3moe.expert_feed_forward_length', experts.size),
  ];
}

function align(offset) {
  return Math.ceil(offset / ALIGNMENT) * ALIGNMENT;
}

/** Writes metadata and tensor table; returns each tensor's absolute offset. */
export function beginGguf(fd, name, shape, tensors, format = 'bf16') {
  const entries = metadata(name, shape, format);
  const parts = [Buffer.from(GGUF_MAGIC), u32(GGUF_VERSION), u64(tensors.length), u64(entries.length), ...entries];
  let offset = 0;
  const offsets = tensors.map((tensor) => {
    const begin = offset;
    // GGUF lists the fastest dimension first.
    const dimensions = [...tensor.shape].reverse();
    const type = tensor.plain ? 'F32' : FORMATS[format].type;
    parts.push(
      text(tensor.gguf),
      u32(dimensions.length),
      ...dimensions.map(u64),
      u32(STORAGE_TYPES[type].id),
      u64(begin),
    );
    offset = align(begin + storedBytes(type, elements(tensor)));
    return begin;
  });
  const head = Buffer.concat(parts);
  const padded = Buffer.alloc(align(head.length));
  head.copy(padded);
  writeSync(fd, padded, 0, padded.length, 0);
  return offsets.map((begin) => begin + padded.length);
}
