/** The architectures we run: what each adds to the common reading of config.json. One small entry per family. */
import type { ModelSpec } from '../engine/native.ts';
import type { Fields } from './fields.ts';
import { MAX_POSITIONS } from './limits.ts';

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
  biases(config: Fields): Pick<ModelSpec, 'qkvBias' | 'outputBias' | 'mlpBias'>;
  qkNorm: boolean;
  window(config: Fields, layers: number): Window;
}

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
    biases: (config) => {
      const attention = config.boolean('attention_bias', false);
      return { ...noMlpBias(config), qkvBias: attention, outputBias: attention };
    },
    qkNorm: true,
    window: qwenWindow,
  },
};

function noBiases(config: Fields): { qkvBias: false; outputBias: false; mlpBias: false } {
  refuse(config, ['attention_bias', 'mlp_bias']);
  return { qkvBias: false, outputBias: false, mlpBias: false };
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
