/** The tensors of a GGUF file under the names and in the order that native code knows. */
import type { ModelSpec, TensorEntry } from '../../engine/native.ts';
import { ModelError, UnsupportedModelError } from '../errors.ts';
import { show } from '../fields.ts';
import { expectedTensors } from '../tensors.ts';
import { isReadHere, STORAGE_TYPES } from './format.ts';
import type { GgufHeader, GgufTensor } from './header.ts';
import { ROPE_FACTORS } from './rope-factors.ts';

const NAMES: Readonly<Record<string, string>> = {
  'model.embed_tokens': 'token_embd',
  'model.norm': 'output_norm',
  lm_head: 'output',
  input_layernorm: 'attn_norm',
  post_attention_layernorm: 'ffn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
  'mlp.gate': 'ffn_gate_inp',
  'mlp.experts.gate_proj': 'ffn_gate_exps',
  'mlp.experts.up_proj': 'ffn_up_exps',
  'mlp.experts.down_proj': 'ffn_down_exps',
};

const EXPERT = /\.experts\.(\d+)\./;

/** `model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`. All experts of a layer are one tensor. */
export function ggufName(stored: string): string {
  const name = stored.replace(EXPERT, '.experts.');
  const [, layer, module = '', kind = ''] = /^(?:model\.layers\.(\d+)\.)?(.+)\.(weight|bias)$/.exec(name) ?? [];
  return `${layer === undefined ? '' : `blk.${layer}.`}${NAMES[module] ?? module}.${kind}`;
}

/** A missing or unknown tensor is refused by its name. */
export function selectGgufTensors(spec: ModelSpec, header: GgufHeader): TensorEntry[] {
  const expected = new Set<string>();
  const entries = [...expectedTensors(spec)].map(([name, shape]) => {
    const own = ggufName(name);
    expected.add(own);
    const tensor = header.tensors.get(own);
    if (!tensor) throw new ModelError(header.file, `has no tensor ${show(own)}.`);
    const expert = EXPERT.exec(name)?.[1];
    return expert === undefined
      ? entryOf(tensor, name, shape, spec, header)
      : expertOf(tensor, name, shape, Number(expert), spec, header);
  });
  for (const name of header.tensors.keys()) {
    if (expected.has(name) || name === ROPE_FACTORS) continue;
    throw new ModelError(header.file, `has the tensor ${show(name)}, which this architecture does not use.`);
  }
  return entries;
}

function entryOf(tensor: GgufTensor, name: string, shape: number[], spec: ModelSpec, header: GgufHeader): TensorEntry {
  const { type, offset } = tensor;
  if (!isReadHere(type)) {
    const known = Object.keys(STORAGE_TYPES).join(', ');
    throw new UnsupportedModelError(
      header.file,
      `tensor ${show(tensor.name)} has type ${type}; ${known} are supported.`,
    );
  }
  if (tensor.shape.length !== shape.length || tensor.shape.some((size, i) => size !== shape[i])) {
    throw new ModelError(
      header.file,
      `tensor ${show(tensor.name)} has shape ${show(tensor.shape)}; the metadata asks for ${show(shape)}.`,
    );
  }
  if (shape.length === 1 && type !== 'F32' && type !== 'F16' && type !== 'BF16') {
    throw new ModelError(header.file, `tensor ${show(tensor.name)} has type ${type}; vectors are BF16, F16 or F32.`);
  }
  return { name, dtype: type, shape, file: 0, offset, ...(isInterleaved(name, spec) && { interleaved: spec.headDim }) };
}

/** One of the matrices that lie one behind the other in the tensor of a layer's experts. */
function expertOf(
  tensor: GgufTensor,
  name: string,
  shape: number[],
  expert: number,
  spec: ModelSpec,
  header: GgufHeader,
): TensorEntry {
  const count = spec.experts?.count ?? 1;
  const entry = entryOf(tensor, name, [count, ...shape], spec, header);
  return { ...entry, shape, offset: entry.offset + (tensor.bytes / count) * expert };
}

/** llama.cpp stores queries and keys of this architecture with the two halves of each head interleaved. */
function isInterleaved(name: string, spec: ModelSpec): boolean {
  return ['llama', 'mixtral'].includes(spec.architecture) && /\.self_attn\.[qk]_proj\./.test(name);
}
