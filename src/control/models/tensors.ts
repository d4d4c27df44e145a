/** Which tensors a spec needs, and whether the files hold exactly those. */
import type { Experts, ModelSpec, TensorEntry, WeightDType } from '../engine/native.ts';
import { ModelError } from './errors.ts';
import { show } from './fields.ts';
import { haveSameBytes, type StoredTensor, type Weights } from './safetensors.ts';

const EMBEDDINGS = 'model.embed_tokens.weight';
const LM_HEAD = 'lm_head.weight';
/** Buffers that old checkpoints store; both are computed from the config. */
const IGNORED = /(^|\.)(rotary_emb\.inv_freq|masked_bias)$/;

/** Name -> shape, row-major, as torch.nn.Linear stores it: [out, in]. */
export function expectedTensors(spec: ModelSpec): Map<string, number[]> {
  const { hiddenSize: hidden, vocabSize: vocab } = spec;
  const expected = new Map<string, number[]>();
  expected.set(EMBEDDINGS, [vocab, hidden]);
  for (let layer = 0; layer < spec.layers; layer++) {
    for (const [name, shape] of layerTensors(spec, layer)) expected.set(`model.layers.${layer}.${name}`, shape);
  }
  expected.set('model.norm.weight', [hidden]);
  if (!spec.tiedEmbeddings) expected.set(LM_HEAD, [vocab, hidden]);
  return expected;
}

function layerTensors(spec: ModelSpec, layer: number): [string, number[]][] {
  const { hiddenSize: hidden, headDim } = spec;
  const queries = spec.heads * headDim;
  const keys = spec.kvHeads * headDim;
  return [
    ['input_layernorm.weight', [hidden]],
    ['post_attention_layernorm.weight', [hidden]],
    ...linear('self_attn.q_proj', queries, hidden, spec.qkvBias),
    ...linear('self_attn.k_proj', keys, hidden, spec.qkvBias),
    ...linear('self_attn.v_proj', keys, hidden, spec.qkvBias),
    ...linear('self_attn.o_proj', hidden, queries, spec.outputBias),
    ...(spec.qkNorm ? qkNorms(headDim) : []),
    ...(spec.experts?.layers[layer] === 1
      ? mixture(hidden, spec.experts)
      : feedForward('mlp', spec.intermediateSize, hidden, spec.mlpBias)),
  ];
}

function feedForward(name: string, inner: number, hidden: number, bias: boolean): [string, number[]][] {
  return [
    ...linear(`${name}.gate_proj`, inner, hidden, bias),
    ...linear(`${name}.up_proj`, inner, hidden, bias),
    ...linear(`${name}.down_proj`, hidden, inner, bias),
  ];
}

function mixture(hidden: number, { count, size }: Experts): [string, number[]][] {
  const experts = Array.from({ length: count }, (_, i) => feedForward(`mlp.experts.${i}`, size, hidden, false));
  return [['mlp.gate.weight', [count, hidden]], ...experts.flat()];
}

const MIXTRAL_NAMES: Readonly<Record<string, string>> = { gate_proj: 'w1', up_proj: 'w3', down_proj: 'w2' };

/** What a checkpoint calls the tensor. */
function storedName(spec: ModelSpec, name: string): string {
  if (spec.architecture !== 'mixtral') return name;
  return name
    .replace('.mlp.', '.block_sparse_moe.')
    .replace(/(\.experts\.\d+\.)(\w+)/, (_, before: string, projection: string) => before + MIXTRAL_NAMES[projection]);
}

function linear(name: string, out: number, input: number, bias: boolean): [string, number[]][] {
  const weight: [string, number[]] = [`${name}.weight`, [out, input]];
  return bias ? [weight, [`${name}.bias`, [out]]] : [weight];
}

function qkNorms(headDim: number): [string, number[]][] {
  return [
    ['self_attn.q_norm.weight', [headDim]],
    ['self_attn.k_norm.weight', [headDim]],
  ];
}

/** The table for native code, in the order of the layers. A missing or unknown tensor is refused by its name. */
export function selectTensors(spec: ModelSpec, weights: Weights): TensorEntry[] {
  const expected = new Set<string>();
  const selected: TensorEntry[] = [];
  for (const [name, shape] of expectedTensors(spec)) {
    const own = storedName(spec, name);
    const stored = weights.tensors.get(own);
    if (!stored) throw new ModelError(weights.files[0]?.name ?? 'weights', `has no tensor ${show(own)}.`);
    expected.add(own);
    selected.push({ ...checkTensor(stored, shape, weights), name });
  }
  for (const stored of weights.tensors.values()) {
    if (expected.has(stored.name) || IGNORED.test(stored.name)) continue;
    // It is the embeddings once more (`checkTiedHead`).
    if (stored.name === LM_HEAD && spec.tiedEmbeddings) continue;
    throw new ModelError(
      fileOf(stored, weights),
      `has the tensor ${show(stored.name)}, which this architecture does not use.`,
    );
  }
  return selected;
}

/** Versions of transformers differ in which of two they take, and so would the numbers. */
export async function checkTiedHead(spec: ModelSpec, weights: Weights): Promise<void> {
  const head = weights.tensors.get(LM_HEAD);
  const embeddings = weights.tensors.get(EMBEDDINGS);
  if (!spec.tiedEmbeddings || !head || !embeddings || (await haveSameBytes(weights, head, embeddings))) return;
  const problem = `has a ${show(LM_HEAD)} other than its ${show(EMBEDDINGS)}, but tie_word_embeddings is true`;
  throw new ModelError(
    fileOf(head, weights),
    `${problem}: set that to false in config.json if the model was trained with both, or take the tensor away.`,
  );
}

function checkTensor(stored: StoredTensor, shape: number[], weights: Weights): TensorEntry {
  const { name, dtype, file, offset } = stored;
  if (dtype !== 'F32' && dtype !== 'F16' && dtype !== 'BF16') {
    throw new ModelError(fileOf(stored, weights), `${show(name)} has dtype ${dtype}; BF16, F16 and F32 are supported.`);
  }
  if (stored.shape.length !== shape.length || stored.shape.some((size, i) => size !== shape[i])) {
    throw new ModelError(
      fileOf(stored, weights),
      `${show(name)} has shape ${show(stored.shape)}; config.json asks for ${show(shape)}.`,
    );
  }
  return { name, dtype, shape, file, offset };
}

function fileOf(stored: StoredTensor, weights: Weights): string {
  return weights.files[stored.file]?.name ?? 'weights';
}

/** Blocks of small numbers, which are kept as they are. */
export function isInBlocks({ dtype }: TensorEntry): boolean {
  return dtype !== 'F32' && dtype !== 'F16' && dtype !== 'BF16';
}

const NAMES: Record<WeightDType, 'float32' | 'float16' | 'bfloat16'> = {
  F32: 'float32',
  F16: 'float16',
  BF16: 'bfloat16',
};

/** The dtype that most of the weights have; blocks of small numbers count as BF16, which holds them best. */
export function majorityDType(tensors: TensorEntry[]): 'float32' | 'float16' | 'bfloat16' {
  const elements: Record<WeightDType, number> = { BF16: 0, F16: 0, F32: 0 };
  for (const { dtype, shape } of tensors) {
    const counted = dtype === 'F32' || dtype === 'F16' ? dtype : 'BF16';
    elements[counted] += shape.reduce((a, b) => a * b, 1);
  }
  const best = (['BF16', 'F16', 'F32'] as const).reduce((a, b) => (elements[b] > elements[a] ? b : a));
  return NAMES[best];
}
