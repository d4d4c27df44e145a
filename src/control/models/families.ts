/** The architectures we run: what each adds to the common reading of config.json. One small entry per family. */
import type { Experts, ModelSpec } from '../engine/native.ts';
import type { Fields } from './fields.ts';
import { MAX_INTERMEDIATE, MAX_LAYER_EXPERTS, MAX_POSITIONS, MAX_USED_EXPERTS } from './limits.ts';

export interface Window {
  slidingWindow: number;
  windowLayers: Uint8Array;
}

export interface Family {
  architecture: ModelSpec['architecture'];
  /** What transformers assumes where config.json is silent; heads = the same as the attention heads. */
  defaultKvHeads: number | 'heads';
  /** null = hidden_size / heads. */
  defaultHeadDim: number | null;
  defaultMaxPosition: number;
  /** 1e-6 where not given. */
  defaultNormEps?: number;
  /** 10,000 where not given. */
  defaultTheta?: number;
  biases(config: Fields): Pick<ModelSpec, 'qkvBias' | 'outputBias' | 'mlpBias'>;
  qkNorm: boolean;
  window(config: Fields, layers: number): Window;
  experts?: ExpertOptions;
}

/** How a family tells of its mixtures of experts. */
export interface ExpertOptions {
  /** Options that are read here and mean something else, or nothing, elsewhere. */
  options: readonly string[];
  read(config: Fields, layers: number): Experts;
}

const EXPERT_COUNTS = ['num_experts', 'num_local_experts', 'num_experts_per_tok'] as const;

export const FAMILIES: Readonly<Record<string, Family>> = {
  LlamaForCausalLM: {
    architecture: 'llama',
    defaultKvHeads: 'heads',
    defaultHeadDim: null,
    defaultMaxPosition: 2048,
    biases: (config) => {
      const attention = config.boolean('attention_bias', false);
      return { qkvBias: attention, outputBias: attention, mlpBias: config.boolean('mlp_bias', false) };
    },
    qkNorm: false,
    window: (config, layers) => {
      refuse(config, ['sliding_window', 'use_sliding_window']);
      return noWindow(config, layers);
    },
  },
  MistralForCausalLM: {
    architecture: 'mistral',
    defaultKvHeads: 8,
    defaultHeadDim: null,
    defaultMaxPosition: 131_072,
    biases: noBiases,
    qkNorm: false,
    window: mistralWindow,
  },
  Qwen2ForCausalLM: {
    architecture: 'qwen2',
    defaultKvHeads: 32,
    defaultHeadDim: null,
    defaultMaxPosition: 32_768,
    biases: (config) => ({ ...noMlpBias(config), qkvBias: true, outputBias: false }),
    qkNorm: false,
    window: qwenWindow,
  },
  Qwen3ForCausalLM: {
    architecture: 'qwen3',
    defaultKvHeads: 32,
    defaultHeadDim: 128,
    defaultMaxPosition: 32_768,
    biases: qwen3Biases,
    qkNorm: true,
    window: qwenWindow,
  },
  Qwen3MoeForCausalLM: {
    architecture: 'qwen3_moe',
    defaultKvHeads: 4,
    defaultHeadDim: null,
    defaultMaxPosition: 32_768,
    biases: qwen3Biases,
    qkNorm: true,
    window: (config, layers) => {
      refuse(config, ['use_sliding_window']);
      return noWindow(config, layers);
    },
    experts: {
      options: [...EXPERT_COUNTS, 'moe_intermediate_size', 'norm_topk_prob', 'decoder_sparse_step', 'mlp_only_layers'],
      read: qwenExperts,
    },
  },
  MixtralForCausalLM: {
    architecture: 'mixtral',
    defaultKvHeads: 8,
    defaultHeadDim: null,
    defaultMaxPosition: 131_072,
    defaultNormEps: 1e-5,
    defaultTheta: 1_000_000,
    biases: noBiases,
    qkNorm: false,
    window: (config, layers) =>
      config.has('sliding_window') ? mistralWindow(config, layers) : noWindow(config, layers),
    experts: {
      options: EXPERT_COUNTS,
      read: (config, layers) => ({
        ...countExperts(config, { experts: 8, used: 2 }),
        size: config.integer('intermediate_size', { max: MAX_INTERMEDIATE }),
        normalise: true,
        layers: new Uint8Array(layers).fill(1),
      }),
    },
  },
};

/** transformers writes either name of the first. */
function countExperts(config: Fields, fallback: { experts: number; used: number }): Pick<Experts, 'count' | 'used'> {
  const name = config.has('num_experts') ? 'num_experts' : 'num_local_experts';
  const count = config.integer(name, { max: MAX_LAYER_EXPERTS, fallback: fallback.experts });
  const used = config.integer('num_experts_per_tok', {
    max: Math.min(count, MAX_USED_EXPERTS),
    fallback: fallback.used,
  });
  return { count, used };
}

/** Every decoder_sparse_step-th layer but those of mlp_only_layers. */
function qwenExperts(config: Fields, layers: number): Experts {
  const step = config.integer('decoder_sparse_step', { max: 1024, fallback: 1 });
  const dense = config.get('mlp_only_layers') ?? [];
  if (!Array.isArray(dense) || !dense.every((layer) => Number.isInteger(layer)))
    config.fail('mlp_only_layers', 'must be a list of layers.');
  const plain = new Set<unknown>(dense);
  return {
    ...countExperts(config, { experts: 128, used: 8 }),
    size: config.integer('moe_intermediate_size', { max: MAX_INTERMEDIATE, fallback: 768 }),
    normalise: config.boolean('norm_topk_prob', false),
    layers: Uint8Array.from({ length: layers }, (_, i) => ((i + 1) % step === 0 && !plain.has(i) ? 1 : 0)),
  };
}

function noBiases(config: Fields): { qkvBias: false; outputBias: false; mlpBias: false } {
  refuse(config, ['attention_bias', 'mlp_bias']);
  return { qkvBias: false, outputBias: false, mlpBias: false };
}

function qwen3Biases(config: Fields): Pick<ModelSpec, 'qkvBias' | 'outputBias' | 'mlpBias'> {
  const attention = config.boolean('attention_bias', false);
  return { ...noMlpBias(config), qkvBias: attention, outputBias: attention };
}

function noMlpBias(config: Fields): { mlpBias: false } {
  refuse(config, ['mlp_bias']);
  return { mlpBias: false };
}

/** Options that this family does not have: anything but absent, null or false would be silently lost. */
function refuse(config: Fields, names: string[]): void {
  for (const name of names) {
    if (config.has(name) && config.get(name) !== false) {
      config.fail(name, 'is not supported for this architecture.');
    }
  }
}

function noWindow(config: Fields, layers: number): Window {
  const types = layerTypes(config, layers);
  if (types?.includes('sliding_attention'))
    config.fail('layer_types', 'has sliding_attention without a sliding window.');
  return { slidingWindow: 0, windowLayers: new Uint8Array(layers) };
}

/** All layers or none. Absent means 4096, as the architecture's first release; null means none. */
function mistralWindow(config: Fields, layers: number): Window {
  refuse(config, ['use_sliding_window']);
  if (config.names().includes('sliding_window') && !config.has('sliding_window')) return noWindow(config, layers);
  const slidingWindow = config.integer('sliding_window', { max: MAX_POSITIONS, fallback: 4096 });
  if (layerTypes(config, layers)?.includes('full_attention')) {
    config.fail('layer_types', 'has full_attention, but the sliding window of this architecture is on all layers.');
  }
  return { slidingWindow, windowLayers: new Uint8Array(layers).fill(1) };
}

/** From layer `max_window_layers` on, or as layer_types says. */
function qwenWindow(config: Fields, layers: number): Window {
  if (!config.boolean('use_sliding_window', false)) return noWindow(config, layers);
  if (config.names().includes('sliding_window') && !config.has('sliding_window')) return noWindow(config, layers);
  const slidingWindow = config.integer('sliding_window', { max: MAX_POSITIONS, fallback: 4096 });
  const first = config.integer('max_window_layers', { min: 0, max: 65_536, fallback: 28 });
  const types = layerTypes(config, layers);
  const windowLayers = Uint8Array.from({ length: layers }, (_, layer) =>
    (types ? types[layer] === 'sliding_attention' : layer >= first) ? 1 : 0,
  );
  return { slidingWindow: windowLayers.includes(1) ? slidingWindow : 0, windowLayers };
}

function layerTypes(config: Fields, layers: number): string[] | undefined {
  const value = config.get('layer_types');
  if (value === undefined) return undefined;
  if (!Array.isArray(value) || value.length !== layers)
    config.fail('layer_types', `must be a list of ${layers} names.`);
  return value.map((type: unknown) => {
    if (type === 'full_attention' || type === 'sliding_attention') return type;
    return config.fail('layer_types', `${JSON.stringify(type)} is not supported.`);
  });
}
