import { describe, expect, it } from 'vitest';
import { readConfig } from '../../../src/control/models/config.ts';
import { ModelError } from '../../../src/control/models/errors.ts';
import { readGenerationConfig } from '../../../src/control/models/generation-config.ts';
import type { ModelSpec, YarnScaling } from '../../../src/control/engine/native.ts';
import { CONFIG, type Json } from './model-directory.ts';

function spec(changes: Json): ModelSpec {
  return readConfig({ ...CONFIG, ...changes }).spec;
}

const mistral = { architectures: ['MistralForCausalLM'], model_type: 'mistral' };
const qwen2 = { architectures: ['Qwen2ForCausalLM'], model_type: 'qwen2' };
const qwen3 = { architectures: ['Qwen3ForCausalLM'], model_type: 'qwen3' };
const qwen3Moe = {
  architectures: ['Qwen3MoeForCausalLM'],
  model_type: 'qwen3_moe',
  num_experts: 8,
  num_experts_per_tok: 2,
  moe_intermediate_size: 12,
};
const mixtral = { architectures: ['MixtralForCausalLM'], model_type: 'mixtral' };
const llama3 = {
  rope_type: 'llama3',
  factor: 8,
  low_freq_factor: 1,
  high_freq_factor: 4,
  original_max_position_embeddings: 32,
};
const llama3Spec = { type: 'llama3', factor: 8, lowFreqFactor: 1, highFreqFactor: 4, originalMaxPosition: 32 };

const yarn = { rope_type: 'yarn', factor: 4, original_max_position_embeddings: 64 };
const yarnSpec: YarnScaling = {
  type: 'yarn',
  factor: 4,
  betaFast: 32,
  betaSlow: 1,
  truncate: true,
  attentionFactor: 0.1 * Math.log(4) + 1,
  originalMaxPosition: 64,
};

const accepted: [string, Json, Partial<ModelSpec>][] = [
  ['llama', {}, { architecture: 'llama', headDim: 4, kvHeads: 1, qkvBias: false, ropeTheta: 10000, slidingWindow: 0 }],
  ['llama: heads without groups', { num_key_value_heads: null }, { kvHeads: 2 }],
  ['mistral: heads without groups', { ...mistral, num_key_value_heads: null }, { kvHeads: 2 }],
  ['llama: own head_dim', { head_dim: 6 }, { headDim: 6 }],
  ['llama: attention_bias', { attention_bias: true }, { qkvBias: true, outputBias: true, mlpBias: false }],
  ['llama: mlp_bias', { mlp_bias: true }, { mlpBias: true, qkvBias: false }],
  ['llama: tied', { tie_word_embeddings: true }, { tiedEmbeddings: true }],
  ['llama: causal, as all are', { is_causal: true }, { architecture: 'llama' }],
  ['llama: neutral pretraining_tp', { pretraining_tp: 1 }, { architecture: 'llama' }],
  ['rope: theta', { rope_theta: 5e5 }, { ropeTheta: 5e5, ropeScaling: { type: 'none' } }],
  ['rope: old linear', { rope_scaling: { type: 'linear', factor: 2 } }, { ropeScaling: { type: 'linear', factor: 2 } }],
  ['rope: old llama3', { rope_theta: 5e5, rope_scaling: llama3 }, { ropeTheta: 5e5, ropeScaling: llama3Spec as never }],
  [
    'rope: new llama3',
    { rope_parameters: { ...llama3, rope_theta: 7e4 } },
    { ropeTheta: 7e4, ropeScaling: llama3Spec as never },
  ],
  [
    'rope: new default',
    { rope_theta: 1e4, rope_parameters: { rope_type: 'default', rope_theta: 1e4 } },
    { ropeTheta: 1e4 },
  ],
  [
    'rope: yarn',
    { rope_scaling: { rope_type: 'yarn', factor: 4 }, max_position_embeddings: 64 },
    { ropeScaling: yarnSpec, maxPosition: 256 },
  ],
  [
    'rope: yarn of fewer positions than the model has',
    { rope_scaling: { type: 'yarn', factor: 2, original_max_position_embeddings: 64 }, max_position_embeddings: 200 },
    { ropeScaling: { ...yarnSpec, factor: 2, attentionFactor: 0.1 * Math.log(2) + 1 }, maxPosition: 200 },
  ],
  [
    'rope: yarn with everything said',
    {
      rope_parameters: {
        ...yarn,
        beta_fast: 8,
        beta_slow: 2,
        truncate: false,
        attention_factor: 1.5,
        mscale: 1,
        mscale_all_dim: 2,
      },
    },
    { ropeScaling: { ...yarnSpec, betaFast: 8, betaSlow: 2, truncate: false, attentionFactor: 1.5 } },
  ],
  [
    'rope: yarn whose truncation is null, which transformers takes for false',
    { rope_scaling: { ...yarn, truncate: null } },
    { ropeScaling: { ...yarnSpec, truncate: false } },
  ],
  [
    'rope: yarn by two multipliers',
    { rope_parameters: { ...yarn, mscale: 0.5, mscale_all_dim: 2 } },
    { ropeScaling: { ...yarnSpec, attentionFactor: (0.05 * Math.log(4) + 1) / (0.2 * Math.log(4) + 1) } },
  ],
  [
    'rope: an original size beside the settings',
    { rope_scaling: { ...yarn, factor: 4 }, original_max_position_embeddings: 32, max_position_embeddings: 64 },
    { ropeScaling: { ...yarnSpec, originalMaxPosition: 32 }, maxPosition: 128 },
  ],
  ['rope: null', { rope_scaling: null }, { ropeScaling: { type: 'none' } }],
  [
    'rope: both layouts, one empty',
    { rope_scaling: {}, rope_parameters: { rope_type: 'default', rope_theta: 7e4 } },
    { ropeTheta: 7e4 },
  ],
  [
    'rope: both layouts',
    { rope_theta: 7e4, rope_scaling: llama3, rope_parameters: { ...llama3, rope_theta: 7e4 } },
    { ropeTheta: 7e4, ropeScaling: llama3Spec as never },
  ],
  ['mistral: window', { ...mistral, sliding_window: 16 }, { slidingWindow: 16, windowLayers: Uint8Array.of(1, 1) }],
  ['mistral: no window', { ...mistral, sliding_window: null }, { slidingWindow: 0, windowLayers: Uint8Array.of(0, 0) }],
  ['mistral: silent', { ...mistral }, { slidingWindow: 4096 }],
  ['mistral: head_dim', { ...mistral, head_dim: 16, sliding_window: null }, { headDim: 16, qkNorm: false }],
  ['qwen2', { ...qwen2, sliding_window: 16 }, { qkvBias: true, outputBias: false, slidingWindow: 0, qkNorm: false }],
  [
    'qwen2: window from a layer on',
    { ...qwen2, use_sliding_window: true, sliding_window: 16, max_window_layers: 1 },
    { slidingWindow: 16, windowLayers: Uint8Array.of(0, 1) },
  ],
  [
    'qwen2: window of no layer',
    { ...qwen2, use_sliding_window: true, sliding_window: 16, max_window_layers: 2 },
    { slidingWindow: 0, windowLayers: Uint8Array.of(0, 0) },
  ],
  ['qwen2: its biases by another name', { ...qwen2, qkv_bias: true }, { qkvBias: true }],
  ['qwen3', { ...qwen3 }, { qkNorm: true, headDim: 128, qkvBias: false, outputBias: false }],
  ['qwen3: attention_bias', { ...qwen3, attention_bias: true, head_dim: 4 }, { qkvBias: true, outputBias: true }],
  [
    'qwen3: layer_types',
    { ...qwen3, use_sliding_window: true, sliding_window: 8, layer_types: ['sliding_attention', 'full_attention'] },
    { slidingWindow: 8, windowLayers: Uint8Array.of(1, 0) },
  ],
  [
    'qwen3_moe',
    { ...qwen3Moe, norm_topk_prob: true },
    { qkNorm: true, experts: { count: 8, used: 2, size: 12, normalise: true, layers: Uint8Array.of(1, 1) } },
  ],
  [
    'qwen3_moe: as transformers writes it, layers without experts',
    { ...qwen3Moe, num_experts: null, num_local_experts: 6, norm_topk_prob: false, mlp_only_layers: [0] },
    { experts: { count: 6, used: 2, size: 12, normalise: false, layers: Uint8Array.of(0, 1) } },
  ],
  [
    'qwen3_moe: every second layer',
    { ...qwen3Moe, decoder_sparse_step: 2, use_sliding_window: false, sliding_window: 4096 },
    { slidingWindow: 0, experts: { count: 8, used: 2, size: 12, normalise: false, layers: Uint8Array.of(0, 1) } },
  ],
  [
    'mixtral',
    { ...mixtral, num_local_experts: 4, sliding_window: null },
    { slidingWindow: 0, experts: { count: 4, used: 2, size: 16, normalise: true, layers: Uint8Array.of(1, 1) } },
  ],
  ['mixtral: silent', { ...mixtral, rms_norm_eps: null, rope_theta: null }, { rmsNormEps: 1e-5, ropeTheta: 1e6 }],
  ['mixtral: a window', { ...mixtral, sliding_window: 32 }, { slidingWindow: 32, windowLayers: Uint8Array.of(1, 1) }],
];

/** [what, changes, the option that the message names] */
const refused: [string, Json, string][] = [
  ['no architecture', { architectures: null }, 'architectures'],
  ['another architecture', { architectures: ['GemmaForCausalLM'] }, 'GemmaForCausalLM'],
  ['an inherited name', { architectures: ['constructor'] }, 'constructor'],
  ['a foreign model_type', { model_type: 'qwen2_moe' }, 'model_type'],
  ['gelu', { hidden_act: 'gelu' }, 'hidden_act'],
  ['quantisation', { quantization_config: { quant_method: 'gptq' } }, 'quantization_config'],
  ['experts', { num_local_experts: 8 }, 'num_local_experts'],
  ['experts of a dense family', { ...qwen3, num_experts: 8 }, 'num_experts'],
  ['more experts used than there are', { ...qwen3Moe, num_experts_per_tok: 9 }, 'num_experts_per_tok'],
  ['experts beyond counting', { ...qwen3Moe, num_experts: 4096, num_hidden_layers: 8 }, 'num_experts'],
  ['experts without a size', { ...qwen3Moe, moe_intermediate_size: 0 }, 'moe_intermediate_size'],
  ['layers that are no list', { ...qwen3Moe, mlp_only_layers: 1 }, 'mlp_only_layers'],
  ['a window over experts', { ...qwen3Moe, use_sliding_window: true, sliding_window: 32 }, 'use_sliding_window'],
  ['shared experts', { ...qwen3Moe, shared_expert_intermediate_size: 8 }, 'shared_expert_intermediate_size'],
  ['partial rotation', { partial_rotary_factor: 0.5 }, 'partial_rotary_factor'],
  ['soft capping', { final_logit_softcapping: 30 }, 'final_logit_softcapping'],
  ['attention soft capping', { attn_logit_softcapping: 50 }, 'attn_logit_softcapping'],
  ['tensor parallel slicing', { pretraining_tp: 2 }, 'pretraining_tp'],
  ['attention to both sides', { ...qwen2, is_causal: false }, 'is_causal'],
  ['attention to both sides in its other spelling', { ...qwen3, is_causal: null }, 'is_causal'],
  ['remote code', { auto_map: { AutoModel: 'x' } }, 'auto_map'],
  ['scaled embeddings', { embedding_multiplier: 12 }, 'embedding_multiplier'],
  ['yarn without factor', { rope_scaling: { rope_type: 'yarn' } }, 'rope_scaling.factor'],
  ['yarn that shrinks', { rope_scaling: { ...yarn, factor: 0.5 } }, 'rope_scaling.factor'],
  ['yarn of disordered turns', { rope_scaling: { ...yarn, beta_fast: 0.5 } }, 'rope_scaling.beta_fast'],
  ['yarn whose truncation is a number', { rope_scaling: { ...yarn, truncate: 1 } }, 'rope_scaling.truncate'],
  ['yarn without attention', { rope_scaling: { ...yarn, attention_factor: 0 } }, 'rope_scaling.attention_factor'],
  ['yarn of one frequency', { rope_theta: 1, rope_scaling: yarn }, 'rope_theta'],
  ['dynamic', { rope_scaling: { type: 'dynamic', factor: 4 } }, 'dynamic'],
  ['longrope', { rope_parameters: { rope_type: 'longrope' } }, 'longrope'],
  ['an inherited rope type', { rope_scaling: { rope_type: 'constructor' } }, 'constructor'],
  ['a rope option', { rope_scaling: { type: 'linear', factor: 2, mscale: 1 } }, 'mscale'],
  ['linear without factor', { rope_scaling: { type: 'linear' } }, 'factor'],
  ['llama3 frequencies in disorder', { rope_scaling: { ...llama3, high_freq_factor: 1 } }, 'high_freq_factor'],
  ['two thetas', { rope_theta: 1e4, rope_parameters: { rope_theta: 5e5 } }, 'rope_theta'],
  [
    'two scalings',
    { rope_scaling: { type: 'linear', factor: 2 }, rope_parameters: { rope_type: 'default' } },
    'rope_scaling',
  ],
  [
    'two thetas in the two layouts',
    { rope_scaling: { rope_type: 'default', rope_theta: 500 }, rope_parameters: { rope_type: 'default' } },
    'rope_scaling disagrees',
  ],
  [
    'a theta in one of the two layouts, of which transformers takes the other',
    { rope_scaling: { rope_type: 'default' }, rope_parameters: { rope_type: 'default', rope_theta: 500 } },
    'rope_scaling disagrees',
  ],
  ['rope per layer type', { rope_parameters: { full_attention: { rope_type: 'default' } } }, 'full_attention'],
  ['a missing size', { hidden_size: null }, 'hidden_size'],
  ['a zero', { num_hidden_layers: 0 }, 'num_hidden_layers'],
  ['a fraction', { intermediate_size: 1.5 }, 'intermediate_size'],
  ['a string', { vocab_size: '260' }, 'vocab_size'],
  ['a huge vocabulary', { vocab_size: 1e12 }, 'vocab_size'],
  ['groups that do not divide', { num_attention_heads: 4, num_key_value_heads: 3 }, 'num_key_value_heads'],
  ['more groups than heads', { num_key_value_heads: 4 }, 'num_key_value_heads'],
  ['more than 32 heads of one group', { num_attention_heads: 64, head_dim: 2 }, 'num_key_value_heads'],
  [
    'more heads than native code takes',
    { num_attention_heads: 2048, num_key_value_heads: 2048, head_dim: 2 },
    'num_attention_heads',
  ],
  ['a wider layer than native code takes', { intermediate_size: 2 ** 20 }, 'intermediate_size'],
  ['more positions than native code takes', { max_position_embeddings: 2 ** 25 }, 'max_position_embeddings'],
  ['an odd head', { head_dim: 5 }, 'head_dim'],
  ['heads that do not divide', { num_attention_heads: 3, num_key_value_heads: 3 }, 'hidden_size'],
  ['a negative epsilon', { rms_norm_eps: -1 }, 'rms_norm_eps'],
  ['llama with a window', { sliding_window: 8 }, 'sliding_window'],
  ['biases by another name', { qkv_bias: true }, 'qkv_bias'],
  ['mistral with biases', { ...mistral, attention_bias: true }, 'attention_bias'],
  ['qwen2 with mlp_bias', { ...qwen2, mlp_bias: true }, 'mlp_bias'],
  [
    'mistral with a mixed window',
    { ...mistral, sliding_window: 8, layer_types: ['full_attention', 'sliding_attention'] },
    'layer_types',
  ],
  ['a window that is off', { ...qwen3, layer_types: ['sliding_attention', 'full_attention'] }, 'layer_types'],
  ['layer types of another count', { ...qwen3, layer_types: ['full_attention'] }, 'layer_types'],
  ['chunked attention', { ...qwen3, layer_types: ['chunked_attention', 'full_attention'] }, 'chunked_attention'],
  ['a negative end token', { eos_token_id: -1 }, 'eos_token_id'],
];

describe('config.json', () => {
  it('reads what Qwen3-Coder-30B-A3B says, without a doubt', () => {
    const config = {
      ...qwen3Moe,
      attention_dropout: 0,
      decoder_sparse_step: 1,
      eos_token_id: 151_645,
      head_dim: 128,
      hidden_act: 'silu',
      hidden_size: 2048,
      intermediate_size: 5472,
      max_position_embeddings: 262_144,
      max_window_layers: 28,
      mlp_only_layers: [],
      moe_intermediate_size: 768,
      norm_topk_prob: true,
      num_attention_heads: 32,
      num_experts: 128,
      num_experts_per_tok: 8,
      num_hidden_layers: 48,
      num_key_value_heads: 4,
      output_router_logits: false,
      qkv_bias: false,
      rms_norm_eps: 1e-6,
      rope_scaling: null,
      rope_theta: 10_000_000,
      router_aux_loss_coef: 0,
      shared_expert_intermediate_size: 0,
      sliding_window: null,
      tie_word_embeddings: false,
      use_cache: true,
      use_qk_norm: true,
      use_sliding_window: false,
      vocab_size: 151_936,
    };
    const { spec: read, unknownOptions } = readConfig({ ...CONFIG, ...config });
    expect(unknownOptions).toEqual([]);
    expect(read).toMatchObject({ layers: 48, headDim: 128, qkNorm: true, qkvBias: false, maxPosition: 262_144 });
    expect(read.experts).toEqual({
      count: 128,
      used: 8,
      size: 768,
      normalise: true,
      layers: new Uint8Array(48).fill(1),
    });
  });

  it('tells of no experts where no layer has any', () => {
    expect(spec({ ...qwen3Moe, mlp_only_layers: [0, 1] })).not.toHaveProperty('experts');
  });

  it.each(accepted)('accepts %s', (_, changes, expected) => {
    expect(spec(changes)).toMatchObject(expected);
  });

  it.each(refused)('refuses %s', (_, changes, named) => {
    expect(() => spec(changes)).toThrow(ModelError);
    expect(() => spec(changes)).toThrow(named);
    expect(() => spec(changes)).toThrow('config.json');
  });
});

describe('generation_config.json', () => {
  it('merges the end tokens of both files and reads the defaults', () => {
    const file = { eos_token_id: [5, 7], temperature: 0.6, top_p: 0.9, top_k: 20, min_p: 0.1, max_new_tokens: 99 };
    expect(readGenerationConfig(file, [7, 9], 100)).toEqual({
      eosTokenIds: [5, 7, 9],
      temperature: 0.6,
      topP: 0.9,
      topK: 20,
      minP: 0.1,
      maxNewTokens: 99,
    });
    expect(readGenerationConfig(null, [3], 100)).toEqual({ eosTokenIds: [3] });
  });

  it.each([
    [{ eos_token_id: 100 }, 'eos_token_id'],
    [{ temperature: -1 }, 'temperature'],
    [{ top_p: 2 }, 'top_p'],
    [{ max_new_tokens: 0 }, 'max_new_tokens'],
  ])('refuses %j', (file, named) => {
    expect(() => readGenerationConfig(file, [], 100)).toThrow(named);
  });
});
