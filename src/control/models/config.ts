/** config.json -> ModelSpec. Whatever would change the mathematics and is not built is refused by its name. */
import type { ModelSpec } from '../engine/native.ts';
import { FAMILIES, type Family } from './families.ts';
import { Fields, show } from './fields.ts';
import type { JsonObject } from './json-file.ts';
import { MAX_EXPERTS, MAX_GROUP, MAX_HEADS, MAX_INTERMEDIATE, MAX_POSITIONS } from './limits.ts';
import { reachOf, readRope } from './rope.ts';

export const CONFIG_FILE = 'config.json';

export interface ModelConfig {
  spec: ModelSpec;
  eosTokenIds: number[];
  /** Options that we have never heard of: they may mean nothing, but the operator should know. */
  unknownOptions: string[];
}

/**
 * Options of other architectures and of quantised or converted checkpoints, with the values that change nothing.
 * null, false and absence are neutral for all of them.
 */
const UNSUPPORTED: Readonly<Record<string, readonly unknown[]>> = {
  quantization_config: [],
  compression_config: [],
  auto_map: [],
  num_experts: [0],
  num_local_experts: [0, 1],
  num_experts_per_tok: [0],
  n_routed_experts: [0],
  moe_intermediate_size: [0],
  n_shared_experts: [0],
  shared_expert_intermediate_size: [0],
  first_k_dense_replace: [0],
  n_group: [1],
  topk_group: [1],
  routed_scaling_factor: [1],
  scoring_func: ['softmax'],
  mlp_only_layers: [[]],
  decoder_sparse_step: [],
  kv_lora_rank: [],
  q_lora_rank: [],
  partial_rotary_factor: [1],
  rotary_pct: [1],
  rope_interleaved: [],
  rope_local_base_freq: [],
  no_rope_layers: [[]],
  no_rope_layer_interval: [],
  attn_logit_softcapping: [],
  final_logit_softcapping: [],
  attn_temperature_tuning: [],
  attention_chunk_size: [],
  sliding_window_pattern: [],
  query_pre_attn_scalar: [],
  pretraining_tp: [1],
  logit_scale: [1],
  logits_scaling: [1],
  embedding_multiplier: [1],
  residual_multiplier: [1],
  attention_multiplier: [],
  scale_emb: [1],
  scale_depth: [],
  dim_model_base: [],
  clip_qkv: [],
  alibi: [],
  use_alibi: [],
  use_parallel_residual: [],
  parallel_attn: [],
  use_qk_norm: [],
  qkv_bias: [],
  qk_layernorm: [],
  layer_norm_eps: [],
  norm_bias: [],
  is_encoder_decoder: [],
  add_cross_attention: [],
  vision_config: [],
  audio_config: [],
  text_config: [],
  pruned_heads: [{}],
  num_nextn_predict_layers: [0],
  llama_4_scaling: [],
};

/** Options that are read elsewhere in this folder, or that serving does not depend on. */
const KNOWN = new Set(
  `architectures model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
  num_key_value_heads head_dim rms_norm_eps rope_theta rope_scaling rope_parameters max_position_embeddings
  sliding_window use_sliding_window max_window_layers layer_types attention_bias mlp_bias tie_word_embeddings
  bos_token_id eos_token_id pad_token_id unk_token_id dtype torch_dtype transformers_version initializer_range
  attention_dropout hidden_dropout resid_pdrop use_cache _name_or_path name_or_path output_attentions
  output_hidden_states return_dict gradient_checkpointing _attn_implementation_autoset id2label label2id
  norm_topk_prob output_router_logits router_aux_loss_coef router_jitter_noise
  original_max_position_embeddings max_sequence_length unsloth_version unsloth_fixed chunk_size_feed_forward
  task_specific_params is_causal`.split(/\s+/),
);

const ACTIVATIONS = ['hidden_act', 'hidden_activation', 'activation_function'];

export function readConfig(object: JsonObject): ModelConfig {
  const config = new Fields(CONFIG_FILE, object);
  const family = findFamily(config);
  refuseUnsupported(config, family);
  return {
    spec: readSpec(config, family),
    eosTokenIds: readTokenIds(config, 'eos_token_id'),
    unknownOptions: config.names().filter((name) => config.has(name) && !isKnown(name)),
  };
}

function isKnown(name: string): boolean {
  return KNOWN.has(name) || ACTIVATIONS.includes(name) || Object.hasOwn(UNSUPPORTED, name);
}

function findFamily(config: Fields): Family {
  const names = config.get('architectures');
  if (!Array.isArray(names) || names.length !== 1 || typeof names[0] !== 'string') {
    config.fail('architectures', `must name one architecture, got ${show(names)}.`);
  }
  const family = Object.hasOwn(FAMILIES, names[0]) ? FAMILIES[names[0]] : undefined;
  if (!family) {
    const known = Object.keys(FAMILIES).join(', ');
    config.fail('architectures', `${show(names[0])} is not supported (${known} are).`);
  }
  const type = config.string('model_type');
  if (type !== undefined && type !== family.architecture) {
    config.fail('model_type', `${show(type)} does not belong to ${names[0]}.`);
  }
  return family;
}

function refuseUnsupported(config: Fields, family: Family): void {
  const own = family.experts?.options ?? [];
  for (const [name, neutral] of Object.entries(UNSUPPORTED)) {
    if (own.includes(name)) continue;
    // Qwen3-Coder's way to say what the architecture has anyway.
    if (name === 'use_qk_norm' && family.qkNorm) continue;
    if (name === 'qkv_bias' && family.biases(config).qkvBias) continue;
    const value = config.get(name);
    if (value === undefined || value === false) continue;
    if (neutral.some((allowed) => JSON.stringify(allowed) === JSON.stringify(value))) continue;
    config.fail(name, `${show(value)} is not supported.`);
  }
  // Attention to both sides, as embedding models have it under the name of a family; in transformers null says so as well.
  if (config.names().includes('is_causal') && config.get('is_causal') !== true)
    config.fail('is_causal', 'is not true: the model does not generate text from left to right.');
  for (const name of ACTIVATIONS) {
    const value = config.get(name);
    if (value !== undefined && value !== 'silu' && value !== 'swish')
      config.fail(name, `${show(value)} is not supported (silu is).`);
  }
}

function readSpec(config: Fields, family: Family): ModelSpec {
  const hiddenSize = config.integer('hidden_size', { max: 2 ** 17 });
  const layers = config.integer('num_hidden_layers', { max: 1024 });
  const heads = config.integer('num_attention_heads', { max: MAX_HEADS });
  const kvHeads = readKvHeads(config, family, heads);
  const maxPosition = config.integer('max_position_embeddings', {
    max: MAX_POSITIONS,
    fallback: family.defaultMaxPosition,
  });
  const rope = readRope(config, maxPosition, family.defaultTheta);
  return {
    architecture: family.architecture,
    vocabSize: config.integer('vocab_size', { max: 2 ** 22 }),
    hiddenSize,
    intermediateSize: config.integer('intermediate_size', { max: MAX_INTERMEDIATE }),
    layers,
    heads,
    kvHeads,
    headDim: readHeadDim(config, family, hiddenSize, heads),
    rmsNormEps: config.number('rms_norm_eps', { min: 1e-12, max: 0.1, fallback: family.defaultNormEps ?? 1e-6 }),
    ropeTheta: rope.theta,
    ropeScaling: rope.scaling,
    maxPosition: reachOf(rope.scaling, maxPosition),
    ...family.window(config, layers),
    ...family.biases(config),
    qkNorm: family.qkNorm,
    tiedEmbeddings: config.boolean('tie_word_embeddings', false),
    ...readExperts(config, family, layers),
  };
}

/** A model of which no layer is a mixture has none. */
function readExperts(config: Fields, family: Family, layers: number): Pick<ModelSpec, 'experts'> {
  const experts = family.experts?.read(config, layers);
  if (!experts?.layers.includes(1)) return {};
  if (experts.count * layers > MAX_EXPERTS) {
    config.fail(
      config.has('num_experts') ? 'num_experts' : 'num_local_experts',
      `${experts.count} is not supported with ${layers} layers: at most ${MAX_EXPERTS} experts in all.`,
    );
  }
  return { experts };
}

function readKvHeads(config: Fields, family: Family, heads: number): number {
  // As in transformers: null is one for each head, and where nothing is said it is the family's number.
  const isNull = config.names().includes('num_key_value_heads') && !config.has('num_key_value_heads');
  const fallback = isNull || family.defaultKvHeads === 'heads' ? heads : family.defaultKvHeads;
  const kvHeads = config.integer('num_key_value_heads', { max: heads, fallback });
  if (heads % kvHeads !== 0)
    config.fail('num_key_value_heads', `${kvHeads} does not divide num_attention_heads ${heads}.`);
  if (heads / kvHeads > MAX_GROUP) {
    config.fail(
      'num_key_value_heads',
      `${kvHeads} is not supported with num_attention_heads ${heads}: at most ${MAX_GROUP} heads may share one.`,
    );
  }
  return kvHeads;
}

function readHeadDim(config: Fields, family: Family, hiddenSize: number, heads: number): number {
  if (!config.has('head_dim') && family.defaultHeadDim === null && hiddenSize % heads !== 0) {
    config.fail('hidden_size', `${hiddenSize} is not a multiple of num_attention_heads ${heads}.`);
  }
  const headDim = config.integer('head_dim', { max: 1024, fallback: family.defaultHeadDim ?? hiddenSize / heads });
  if (headDim % 2 !== 0) config.fail('head_dim', `must be even, got ${headDim}.`);
  return headDim;
}

const MAX_EOS_IDS = 256;

/** A number or a list of numbers; [] where absent. */
export function readTokenIds(config: Fields, name: string): number[] {
  const value = config.get(name);
  if (value === undefined) return [];
  const ids: unknown[] = Array.isArray(value) ? value : [value];
  if (ids.length > MAX_EOS_IDS) config.fail(name, `must hold at most ${MAX_EOS_IDS} ids.`);
  return ids.map((id) => {
    if (typeof id === 'number' && Number.isInteger(id) && id >= 0 && id < 2 ** 22) return id;
    return config.fail(name, `must be token ids, got ${show(id)}.`);
  });
}
