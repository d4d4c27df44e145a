/** Metadata -> ModelConfig. Whatever would change the mathematics and is not built is refused by its key. */
import type { Experts, ModelSpec, YarnScaling } from '../../engine/native.ts';
import type { ModelConfig } from '../config.ts';
import { ModelError } from '../errors.ts';
import { Fields, show } from '../fields.ts';
import {
  MAX_EXPERTS,
  MAX_GROUP,
  MAX_HEADS,
  MAX_INTERMEDIATE,
  MAX_LAYER_EXPERTS,
  MAX_POSITIONS,
  MAX_USED_EXPERTS,
} from '../limits.ts';
import type { GenerationDefaults } from '../model.ts';
import type { GgufHeader } from './header.ts';
import { reachOf, yarnAttentionFactor } from '../rope.ts';
import { readRopeFactors, ROPE_FACTORS } from './rope-factors.ts';

interface Architecture {
  /** general.architecture, which keys begin with. */
  name: string;
  dense: ModelSpec['architecture'] | null;
  /** Where the file tells of experts; null: it may not. */
  mixture: ModelSpec['architecture'] | null;
  qkNorm: boolean;
}

/** Mistral models are stored as llama, and so is Mixtral. */
const ARCHITECTURES: readonly Architecture[] = [
  { name: 'llama', dense: 'llama', mixture: 'mixtral', qkNorm: false },
  { name: 'qwen2', dense: 'qwen2', mixture: null, qkNorm: false },
  { name: 'qwen3', dense: 'qwen3', mixture: null, qkNorm: true },
  { name: 'qwen3moe', dense: null, mixture: 'qwen3_moe', qkNorm: true },
];

/** Read below where an architecture may have experts, refused elsewhere. */
const EXPERT_KEYS = ['expert_count', 'expert_used_count', 'expert_feed_forward_length'];

const CAUSAL = 'attention.causal';

/** Keys behind the architecture's name that other models need, with the values that change nothing: false too, but for the first. */
const UNSUPPORTED: Readonly<Record<string, readonly unknown[]>> = {
  [CAUSAL]: [true],
  expert_count: [0],
  expert_used_count: [0],
  expert_feed_forward_length: [0],
  expert_shared_count: [0],
  expert_shared_feed_forward_length: [0],
  expert_group_count: [0, 1],
  expert_group_used_count: [0, 1],
  // 1: softmax. Weights of the chosen ones sum to 1 in these architectures, whether it is said or not.
  expert_gating_func: [0, 1],
  expert_weights_norm: [true],
  expert_weights_scale: [0, 1],
  leading_dense_block_count: [0],
  nextn_predict_layers: [0],
  tensor_data_layout: [],
  use_parallel_residual: [],
  pooling_type: [0],
  hidden_activation: ['silu'],
  logit_scale: [1],
  residual_scale: [1],
  embedding_scale: [1],
  attn_logit_softcapping: [0],
  final_logit_softcapping: [0],
  full_attention_interval: [1],
  'attention.scale': [0],
  'attention.output_scale': [1],
  'attention.value_scale': [1],
  'attention.clamp_kqv': [0],
  'attention.max_alibi_bias': [0],
  'attention.sliding_window_pattern': [],
  'attention.temperature_length': [0],
  'attention.temperature_scale': [0],
  'attention.layer_norm_epsilon': [],
  'rope.dimension_sections': [],
  'rope.freq_base_swa': [],
  'rope.scaling.attn_factor': [1],
  'rope.scaling.alpha': [0],
  'rope.scaling.yarn_ext_factor': [1],
  'rope.scaling.yarn_attn_factor': [1],
  'rope.scaling.yarn_log_multiplier': [0],
};

/** Keys behind the architecture's name that are read below, or that serving does not depend on. */
const KNOWN = new Set([
  'block_count',
  'context_length',
  'embedding_length',
  'feed_forward_length',
  'vocab_size',
  'attention.head_count',
  'attention.head_count_kv',
  'attention.key_length',
  'attention.value_length',
  'attention.layer_norm_rms_epsilon',
  'attention.sliding_window',
  'rope.dimension_count',
  'rope.freq_base',
  'rope.scale_linear',
  'rope.scaling.type',
  'rope.scaling.factor',
  'rope.scaling.original_context_length',
  'rope.scaling.finetuned',
  'rope.scaling.yarn_beta_fast',
  'rope.scaling.yarn_beta_slow',
]);

export interface GgufConfig extends ModelConfig {
  generation: Omit<GenerationDefaults, 'eosTokenIds'>;
}

/** Reads the few bytes of the rope factors from the file as well. */
export async function readGgufConfig(header: GgufHeader): Promise<GgufConfig> {
  const metadata: Fields = new Fields(header.file, header.metadata);
  const architecture = nativeArchitecture(metadata);
  const own = naming(architecture);
  for (const [name, neutral] of Object.entries(UNSUPPORTED)) {
    if (architecture.mixture !== null && EXPERT_KEYS.includes(name)) continue;
    const value = metadata.get(own(name));
    if (value === undefined || neutral.includes(value)) continue;
    if (value === false && name !== CAUSAL) continue;
    metadata.unsupported(own(name), `${show(value)} is not supported.`);
  }
  return {
    spec: await readSpec(header, metadata, architecture),
    eosTokenIds: [],
    unknownOptions: metadata.names().filter((name) => isUnknown(name, architecture)),
    generation: readSampling(metadata),
  };
}

function naming({ name: architecture }: Architecture): Naming {
  return (name) => `${architecture}.${name}`;
}

function isUnknown(name: string, { name: architecture }: Architecture): boolean {
  if (!name.startsWith(`${architecture}.`)) return false;
  const own = name.slice(architecture.length + 1);
  return !KNOWN.has(own) && !Object.hasOwn(UNSUPPORTED, own);
}

/** The architecture's name, or a refusal of what is no whole model. */
export function readArchitecture(metadata: Fields): string {
  const type = metadata.string('general.type');
  if (type !== undefined && type !== 'model')
    metadata.fail('general.type', `${show(type)} is not supported (model is).`);
  const splits = metadata.integer('split.count', { min: 0, max: 65_535, fallback: 1 });
  if (splits > 1)
    metadata.fail('split.count', `is ${splits}: merge the parts into one file first (llama-gguf-split --merge).`);
  return metadata.string('general.architecture') ?? metadata.fail('general.architecture', 'is missing.');
}

function nativeArchitecture(metadata: Fields): Architecture {
  const name = readArchitecture(metadata);
  const found = ARCHITECTURES.find((architecture) => architecture.name === name);
  if (found) return found;
  const known = ARCHITECTURES.map((architecture) => architecture.name).join(', ');
  return metadata.unsupported('general.architecture', `${show(name)} is not supported (${known} are).`);
}

/** Rows of the embedding. */
export function readVocabSize(header: GgufHeader): number {
  const rows = header.tensors.get('token_embd.weight')?.shape[0];
  if (rows === undefined) throw new ModelError(header.file, 'tensor "token_embd.weight" is missing.');
  return rows;
}

async function readSpec(header: GgufHeader, metadata: Fields, architecture: Architecture): Promise<ModelSpec> {
  const own = naming(architecture);
  const integer = (name: string, max: number, fallback?: number): number =>
    metadata.integer(own(name), { max, ...(fallback !== undefined && { fallback }) });
  const layers = integer('block_count', 1024);
  const heads = integer('attention.head_count', MAX_HEADS);
  const kvHeads = integer('attention.head_count_kv', heads, heads);
  if (heads % kvHeads !== 0)
    metadata.fail(own('attention.head_count_kv'), `${kvHeads} does not divide ${heads} heads.`);
  if (heads / kvHeads > MAX_GROUP) {
    metadata.unsupported(
      own('attention.head_count_kv'),
      `${kvHeads} is not supported with ${heads} heads: at most ${MAX_GROUP} may share one.`,
    );
  }
  const hiddenSize = integer('embedding_length', 2 ** 17);
  const has = (name: string): boolean => header.tensors.has(name);
  const headDim = readHeadDim(metadata, own, hiddenSize, heads);
  const maxPosition = integer('context_length', MAX_POSITIONS);
  const ropeTheta = metadata.number(own('rope.freq_base'), { min: 1, max: 1e15, fallback: 10_000 });
  const ropeScaling = await readScaling(header, metadata, own, { headDim, maxPosition });
  if (ropeScaling.type === 'yarn' && ropeTheta === 1)
    metadata.fail(own('rope.freq_base'), 'must be greater than 1 with yarn.');
  const experts = readExperts(metadata, architecture, layers);
  return {
    architecture: specArchitecture(metadata, architecture, experts),
    vocabSize: readVocabSize(header),
    hiddenSize,
    intermediateSize: integer('feed_forward_length', MAX_INTERMEDIATE),
    layers,
    heads,
    kvHeads,
    headDim,
    rmsNormEps: metadata.number(own('attention.layer_norm_rms_epsilon'), { min: 1e-12, max: 0.1 }),
    ropeTheta,
    ropeScaling,
    maxPosition: reachOf(ropeScaling, maxPosition),
    ...readWindow(metadata, own, architecture, layers),
    qkvBias: has('blk.0.attn_q.bias'),
    outputBias: has('blk.0.attn_output.bias'),
    mlpBias: has('blk.0.ffn_gate.bias'),
    qkNorm: architecture.qkNorm,
    tiedEmbeddings: !has('output.weight'),
    ...(experts && { experts }),
  };
}

type Naming = (name: string) => string;

function specArchitecture(
  metadata: Fields,
  architecture: Architecture,
  experts: Experts | undefined,
): ModelSpec['architecture'] {
  const found = experts ? architecture.mixture : architecture.dense;
  return found ?? metadata.fail(naming(architecture)('expert_count'), 'is missing or 0.');
}

/** All layers' feed-forwards or none. */
function readExperts(metadata: Fields, architecture: Architecture, layers: number): Experts | undefined {
  const own = naming(architecture);
  const count = metadata.integer(own('expert_count'), { min: 0, max: MAX_LAYER_EXPERTS, fallback: 0 });
  if (architecture.mixture === null || count === 0) return undefined;
  if (count * layers > MAX_EXPERTS)
    metadata.unsupported(own('expert_count'), `${count} in each of ${layers} layers are not supported.`);
  const size = metadata.has(own('expert_feed_forward_length')) ? 'expert_feed_forward_length' : 'feed_forward_length';
  return {
    count,
    used: metadata.integer(own('expert_used_count'), { max: Math.min(count, MAX_USED_EXPERTS) }),
    size: metadata.integer(own(size), { max: MAX_INTERMEDIATE }),
    normalise: true,
    layers: new Uint8Array(layers).fill(1),
  };
}

function readHeadDim(metadata: Fields, own: Naming, hiddenSize: number, heads: number): number {
  if (!metadata.has(own('attention.key_length')) && hiddenSize % heads !== 0) {
    metadata.fail(own('embedding_length'), `${hiddenSize} is not a multiple of ${heads} heads.`);
  }
  const headDim = metadata.integer(own('attention.key_length'), { max: 1024, fallback: hiddenSize / heads });
  if (headDim % 2 !== 0) metadata.fail(own('attention.key_length'), `must be even, got ${headDim}.`);
  for (const name of ['attention.value_length', 'rope.dimension_count']) {
    const value = metadata.integer(own(name), { max: 2 ** 20, fallback: headDim });
    if (value !== headDim) metadata.unsupported(own(name), `${value} is not supported where a head has ${headDim}.`);
  }
  return headDim;
}

/** llama: Mistral's window is on all layers. Elsewhere the format does not say on which. */
function readWindow(
  metadata: Fields,
  own: Naming,
  architecture: Architecture,
  layers: number,
): Pick<ModelSpec, 'slidingWindow' | 'windowLayers'> {
  const slidingWindow = metadata.integer(own('attention.sliding_window'), { min: 0, max: MAX_POSITIONS, fallback: 0 });
  if (slidingWindow > 0 && architecture.name !== 'llama') {
    metadata.unsupported(own('attention.sliding_window'), `${slidingWindow} is not supported for this architecture.`);
  }
  return { slidingWindow, windowLayers: new Uint8Array(layers).fill(slidingWindow > 0 ? 1 : 0) };
}

/** Scaling of the whole (linear), YaRN's by llama.cpp's defaults, or a factor per frequency (how Llama 3.1's rule is stored). */
async function readScaling(
  header: GgufHeader,
  metadata: Fields,
  own: Naming,
  { headDim, maxPosition }: Pick<ModelSpec, 'headDim' | 'maxPosition'>,
): Promise<ModelSpec['ropeScaling']> {
  const type = metadata.string(own('rope.scaling.type')) ?? 'linear';
  if (!['none', 'linear', 'yarn'].includes(type)) {
    metadata.unsupported(own('rope.scaling.type'), `${show(type)} is not supported (none, linear, yarn are).`);
  }
  const range = { min: 0, max: 65_536, fallback: 0 };
  const name = metadata.has(own('rope.scaling.factor')) ? own('rope.scaling.factor') : own('rope.scale_linear');
  // 0 and no number mean no scaling, as in llama.cpp.
  const factor = metadata.number(name, range) || 1;
  const scaled = type !== 'none' && factor !== 1;
  if (header.tensors.has(ROPE_FACTORS)) {
    if (scaled) metadata.fail(name, `is not supported beside the tensor ${ROPE_FACTORS}.`);
    return { type: 'factors', factors: await readRopeFactors(header, headDim) };
  }
  if (!scaled) return { type: 'none' };
  return type === 'linear' ? { type, factor } : readYarn(metadata, own, factor, maxPosition);
}

function readYarn(metadata: Fields, own: Naming, factor: number, maxPosition: number): YarnScaling {
  if (factor < 1) metadata.fail(own('rope.scaling.factor'), `must be at least 1 with yarn, got ${factor}.`);
  const beta = (name: string, fallback: number): number =>
    metadata.number(own(name), { min: 1e-6, max: 1e6, fallback });
  const betaFast = beta('rope.scaling.yarn_beta_fast', 32);
  const betaSlow = beta('rope.scaling.yarn_beta_slow', 1);
  if (betaFast < betaSlow)
    metadata.fail(own('rope.scaling.yarn_beta_fast'), 'must not be less than that of yarn_beta_slow.');
  const originalMaxPosition = metadata.integer(own('rope.scaling.original_context_length'), {
    max: MAX_POSITIONS,
    fallback: maxPosition,
  });
  const attentionFactor = yarnAttentionFactor(factor);
  return { type: 'yarn', factor, betaFast, betaSlow, truncate: true, attentionFactor, originalMaxPosition };
}

/** The author's sampling defaults: temperature and what is cut away. */
export function readSampling(metadata: Fields): GgufConfig['generation'] {
  const key = (name: string): string => `general.sampling.${name}`;
  const number = (name: string, min: number, max: number): number | undefined =>
    metadata.has(key(name)) ? metadata.number(key(name), { min, max }) : undefined;
  const topK = metadata.has(key('top_k')) ? metadata.integer(key('top_k'), { min: -1, max: 2 ** 22 }) : undefined;
  const found = {
    temperature: number('temp', 0, 1000),
    topP: number('top_p', 1e-9, 1),
    topK,
    minP: number('min_p', 0, 1),
    repetitionPenalty: number('penalty_repeat', 1e-6, 1e6),
  };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
}
