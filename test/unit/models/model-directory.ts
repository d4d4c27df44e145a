/** Small model directories with one thing wrong, or nothing. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readConfig } from '../../../src/control/models/config.ts';
import { expectedTensors } from '../../../src/control/models/tensors.ts';

export type Json = Record<string, unknown>;

export const CONFIG: Json = {
  architectures: ['LlamaForCausalLM'],
  model_type: 'llama',
  vocab_size: 260,
  hidden_size: 8,
  intermediate_size: 16,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  max_position_embeddings: 64,
  rms_norm_eps: 1e-5,
  tie_word_embeddings: false,
  hidden_act: 'silu',
  torch_dtype: 'float32',
  bos_token_id: 256,
  eos_token_id: 257,
};

const made: string[] = [];

/** After each test file (test/unit/clean-up.ts). */
export function removeTemporaryDirectories(): void {
  for (const directory of made.splice(0)) rmSync(directory, { recursive: true, force: true });
}

/** Removed after the test file. */
export function temporaryDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), 'tandem-model-'));
  made.push(directory);
  return directory;
}

/** Printable characters of GPT-2's byte map, by byte. */
export function byteCharacters(): string[] {
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return String.fromCharCode(printable ? byte : next++);
  });
}

/** Ids 0..255 are bytes, then <s>, </s>, <think>, and a merge of "h" and "i". */
export function byteTokenizer(): { json: Json; config: Json } {
  const vocab = Object.fromEntries(byteCharacters().map((char, byte): [string, number] => [char, byte]));
  vocab['hi'] = 259;
  const added = (content: string, id: number, special: boolean): Json => ({ id, content, special, normalized: false });
  const level = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true };
  return {
    json: {
      added_tokens: [added('<s>', 256, true), added('</s>', 257, true), added('<think>', 258, false)],
      normalizer: null,
      pre_tokenizer: level,
      post_processor: null,
      decoder: level,
      model: { type: 'BPE', vocab, merges: [['h', 'i']] },
    },
    config: { bos_token: '<s>', eos_token: { content: '</s>' }, chat_template: '{{ messages[0].content }}' },
  };
}

interface HeaderEntry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

/** Zeros of the given tensors, with their honest header. */
export function plainHeader(shapes: Iterable<[string, number[]]>): {
  header: Record<string, HeaderEntry>;
  bytes: number;
} {
  const header: Record<string, HeaderEntry> = {};
  let at = 0;
  for (const [name, shape] of shapes) {
    const end = at + shape.reduce((a, b) => a * b, 4);
    header[name] = { dtype: 'F32', shape, data_offsets: [at, end] };
    at = end;
  }
  return { header, bytes: at };
}

export function writeSafetensors(path: string, header: unknown, dataBytes: number): void {
  const text = typeof header === 'string' ? header : JSON.stringify(header);
  const head = Buffer.from(text);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(head.length));
  writeFileSync(path, Buffer.concat([length, head, Buffer.alloc(dataBytes)]));
}

export interface DirectoryOptions {
  config?: Json;
  generation?: Json;
  tokenizer?: Json;
  tokenizerConfig?: Json;
  /** null = no weights are written. */
  tensors?: Iterable<[string, number[]]> | null;
}

/** A directory that loads, unless the options say otherwise. */
export function writeModel(options: DirectoryOptions = {}): string {
  const directory = temporaryDirectory();
  const write = (name: string, value: unknown): void => writeFileSync(join(directory, name), JSON.stringify(value));
  const config = { ...CONFIG, ...options.config };
  const tokenizer = byteTokenizer();
  write('config.json', config);
  if (options.generation) write('generation_config.json', options.generation);
  write('tokenizer.json', options.tokenizer ?? tokenizer.json);
  write('tokenizer_config.json', options.tokenizerConfig ?? tokenizer.config);
  if (options.tensors === null) return directory;
  const { header, bytes } = plainHeader(options.tensors ?? expectedTensors(readConfig(config).spec));
  writeSafetensors(join(directory, 'model.safetensors'), header, bytes);
  return directory;
}
