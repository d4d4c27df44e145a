/**
 * Makes a Qwen3-shaped model with random weights, twice: a Hugging Face directory and a GGUF file with the same numbers.
 * A command too: --help tells its options.
 */
import {
  closeSync,
  existsSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  renameSync,
  rmSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { runCommand } from '../lib/command.mjs';
import { beginGguf } from './gguf.mjs';
import { beginSafetensors } from './safetensors.mjs';
import { elements, RMS_EPS, ROPE_THETA, shapes, specialTokens, tensorsOf } from './shapes.mjs';
import { tokenizerConfig, tokenizerJson } from './tokenizer.mjs';
import { quantised } from './quantise.mjs';
import { fromBf16, weightPieces } from './weights.mjs';

const MODELS = path.resolve(import.meta.dirname, '../.models');

/** Raised whenever the files' contents change, so that old ones are made again. */
const FORMAT = 1;

function configJson(shape) {
  return {
    architectures: [shape.experts ? 'Qwen3MoeForCausalLM' : 'Qwen3ForCausalLM'],
    model_type: shape.experts ? 'qwen3_moe' : 'qwen3',
    ...(shape.experts && {
      num_experts: shape.experts.count,
      num_experts_per_tok: shape.experts.used,
      moe_intermediate_size: shape.experts.size,
      norm_topk_prob: true,
    }),
    hidden_act: 'silu',
    hidden_size: shape.hidden,
    intermediate_size: shape.ffn,
    num_hidden_layers: shape.layers,
    num_attention_heads: shape.heads,
    num_key_value_heads: shape.kvHeads,
    head_dim: shape.headDim,
    vocab_size: shape.vocab,
    max_position_embeddings: shape.context,
    rms_norm_eps: RMS_EPS,
    rope_theta: ROPE_THETA,
    rope_scaling: null,
    attention_bias: false,
    attention_dropout: 0,
    use_sliding_window: false,
    sliding_window: null,
    tie_word_embeddings: true,
    eos_token_id: specialTokens(shape)[2].id,
    torch_dtype: 'bfloat16',
  };
}

function writeJson(folder, name, value) {
  writeFileSync(path.join(folder, name), `${JSON.stringify(value, null, name === 'tokenizer.json' ? 0 : 2)}\n`);
}

/** Norms and routers are F32 in the GGUF; every BF16 number is one exactly. */
function widened(piece) {
  return Float32Array.from(piece, (bits) => fromBf16(bits));
}

function writeWeights(folder, name, shape) {
  const tensors = tensorsOf(shape);
  const hf = openSync(path.join(folder, 'model.safetensors'), 'w');
  const gguf = openSync(path.join(folder, 'model.gguf'), 'w');
  const hfOffsets = beginSafetensors(hf, tensors);
  const ggufOffsets = beginGguf(gguf, name, shape, tensors);
  tensors.forEach((tensor, index) => {
    let [at, ggufAt] = [hfOffsets[index], ggufOffsets[index]];
    for (const piece of weightPieces(tensor, elements(tensor), index + 1)) {
      at += writeSync(hf, piece, 0, piece.byteLength, at);
      const other = tensor.plain ? widened(piece) : piece;
      ggufAt += writeSync(gguf, other, 0, other.byteLength, ggufAt);
    }
    if (index === tensors.length - 1) ftruncateSync(gguf, Math.ceil(ggufAt / 32) * 32);
  });
  closeSync(hf);
  closeSync(gguf);
}

/** Makes the model where it is missing; returns its directory (Hugging Face layout) and its GGUF file. */
export function ensureRandomModel(name, out = path.join(MODELS, `random-${name}`)) {
  const shape = shapes[name];
  if (!shape) throw new Error(`Unknown shape ${name}; there are ${Object.keys(shapes).join(', ')}.`);
  const result = { shape, directory: out, gguf: path.join(out, 'model.gguf') };
  const mark = path.join(out, `.format-${FORMAT}`);
  if (existsSync(mark)) return result;
  console.error(`Making the random model ${name} ...`);
  const temporary = `${out}.partial-${process.pid}`;
  rmSync(temporary, { recursive: true, force: true });
  mkdirSync(temporary, { recursive: true });
  writeJson(temporary, 'config.json', configJson(shape));
  writeJson(temporary, 'generation_config.json', { eos_token_id: specialTokens(shape)[2].id, do_sample: false });
  writeJson(temporary, 'tokenizer.json', tokenizerJson(shape));
  writeJson(temporary, 'tokenizer_config.json', tokenizerConfig(shape));
  writeWeights(temporary, `random-${name}`, shape);
  writeFileSync(path.join(temporary, path.basename(mark)), '');
  rmSync(out, { recursive: true, force: true });
  renameSync(temporary, out);
  return result;
}

/** The same weights in a GGUF file of that format (q8_0 or q4_0), made where it is missing; returns the file. */
export function ensureQuantisedGguf({ shape, directory }, name, format) {
  const file = path.join(directory, `model-${format}.gguf`);
  if (existsSync(file)) return file;
  console.error(`Making ${path.basename(file)} ...`);
  const temporary = `${file}.partial-${process.pid}`;
  const tensors = tensorsOf(shape);
  const gguf = openSync(temporary, 'w');
  const offsets = beginGguf(gguf, `random-${name}`, shape, tensors, format);
  let end = 0;
  tensors.forEach((tensor, index) => {
    let at = offsets[index];
    for (const piece of weightPieces(tensor, elements(tensor), index + 1)) {
      const stored = tensor.plain ? widened(piece) : quantised(widened(piece), format);
      at += writeSync(gguf, stored, 0, stored.byteLength, at);
    }
    end = at;
  });
  ftruncateSync(gguf, Math.ceil(end / 32) * 32);
  closeSync(gguf);
  renameSync(temporary, file);
  return file;
}

const USAGE = `node benchmarks/models/make-random-model.mjs [options]
  --shape NAME   qwen3-0.6b (default), qwen3-moe or small
  --out FOLDER   where to, if not benchmarks/.models`;

function parse() {
  const text = { type: 'string' };
  const options = { shape: { ...text, default: 'qwen3-0.6b' }, out: text, help: { type: 'boolean', default: false } };
  return parseArgs({ options }).values;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await runCommand(USAGE, parse, ({ shape, out }) => console.log(ensureRandomModel(shape, out).directory));
}
