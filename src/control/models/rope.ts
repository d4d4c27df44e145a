/** Rotary settings of config.json, in the old layout (rope_theta + rope_scaling) and the new one (rope_parameters). */
import type { ModelSpec, YarnScaling } from '../engine/native.ts';
import type { Fields } from './fields.ts';
import { MAX_POSITIONS } from './limits.ts';

export interface Rope {
  theta: number;
  scaling: ModelSpec['ropeScaling'];
}

const DEFAULT_THETA = 10_000;
const MAX_THETA = 1e15;
const ORIGINAL = 'original_max_position_embeddings';

const KEYS: Record<string, readonly string[]> = {
  default: [],
  linear: ['factor'],
  llama3: ['factor', 'low_freq_factor', 'high_freq_factor', ORIGINAL],
  yarn: ['factor', ORIGINAL, 'beta_fast', 'beta_slow', 'truncate', 'attention_factor', 'mscale', 'mscale_all_dim'],
};

/** `maxPosition`: that of the model where no scaling is. */
export function readRope(config: Fields, maxPosition: number, defaultTheta = DEFAULT_THETA): Rope {
  const parameters = readSettings(config, 'rope_parameters');
  const scaling = readSettings(config, 'rope_scaling');
  const top = config.has('rope_theta') ? readTheta(config) : undefined;
  const settings = parameters ?? scaling;
  if (!settings) return { theta: top ?? defaultTheta, scaling: { type: 'none' } };
  const read = (fields: Fields): Rope => {
    const inner = fields.has('rope_theta') ? readTheta(fields) : undefined;
    if (inner !== undefined && top !== undefined && inner !== top)
      fields.fail('rope_theta', `is ${inner} but rope_theta is ${top}.`);
    return { theta: inner ?? top ?? defaultTheta, scaling: readScaling(fields, config, maxPosition) };
  };
  const rope = read(settings);
  if (parameters && scaling && JSON.stringify(read(scaling)) !== JSON.stringify(rope)) {
    config.fail('rope_scaling', 'disagrees with rope_parameters.');
  }
  if (rope.scaling.type === 'yarn' && rope.theta === 1)
    config.fail('rope_theta', 'must be greater than 1 with rope type yarn.');
  return rope;
}

/** An empty object says nothing. */
function readSettings(config: Fields, name: string): Fields | undefined {
  const settings = config.object(name);
  return settings && settings.names().length > 0 ? settings : undefined;
}

/** Positions that a model can use: YaRN reaches beyond what it was made with, whether max_position_embeddings says so or not. */
export function reachOf(scaling: Rope['scaling'], maxPosition: number): number {
  if (scaling.type !== 'yarn') return maxPosition;
  return Math.min(MAX_POSITIONS, Math.max(maxPosition, Math.floor(scaling.originalMaxPosition * scaling.factor)));
}

/** What queries and keys are multiplied by where a model does not say: Peng et al., "YaRN", for scores that are divided as usual. */
export function yarnAttentionFactor(factor: number, multiplier = 1): number {
  return factor <= 1 ? 1 : 0.1 * multiplier * Math.log(factor) + 1;
}

function readTheta(fields: Fields): number {
  return fields.number('rope_theta', { min: 1, max: MAX_THETA });
}

function readScaling(settings: Fields, config: Fields, maxPosition: number): Rope['scaling'] {
  const type = settings.string('rope_type') ?? settings.string('type') ?? 'default';
  const known = KEYS[Object.hasOwn(KEYS, type) ? type : ''];
  if (!known)
    settings.fail('rope_type', `${JSON.stringify(type)} is not supported (${Object.keys(KEYS).join(', ')} are).`);
  for (const name of settings.names()) {
    if (name === 'rope_theta' || name === 'rope_type' || name === 'type' || known.includes(name)) continue;
    if (name === 'partial_rotary_factor' && settings.get(name) === 1) continue;
    if (settings.has(name)) settings.fail(name, `is not supported with rope type ${type}.`);
  }
  if (type === 'linear') return { type, factor: readFactor(settings) };
  if (type === 'llama3') return readLlama3(settings, readOriginal(settings, config));
  if (type === 'yarn') return readYarn(settings, readOriginal(settings, config, maxPosition));
  return { type: 'none' };
}

function readFactor(settings: Fields): number {
  return settings.number('factor', { min: 1, max: 65_536 });
}

/** One beside the settings goes before that in them, as in transformers. */
function readOriginal(settings: Fields, config: Fields, fallback?: number): number {
  const from = config.has(ORIGINAL) ? config : settings;
  return from.integer(ORIGINAL, { max: MAX_POSITIONS, ...(fallback !== undefined && { fallback }) });
}

function readLlama3(settings: Fields, originalMaxPosition: number): Rope['scaling'] {
  const lowFreqFactor = settings.number('low_freq_factor', { min: 1e-6, max: 1e6 });
  const highFreqFactor = settings.number('high_freq_factor', { min: 1e-6, max: 1e6 });
  if (highFreqFactor <= lowFreqFactor) settings.fail('high_freq_factor', 'must be greater than low_freq_factor.');
  return { type: 'llama3', factor: readFactor(settings), lowFreqFactor, highFreqFactor, originalMaxPosition };
}

function readYarn(settings: Fields, originalMaxPosition: number): YarnScaling {
  const factor = readFactor(settings);
  const betaFast = settings.number('beta_fast', { min: 1e-6, max: 1e6, fallback: 32 });
  const betaSlow = settings.number('beta_slow', { min: 1e-6, max: 1e6, fallback: 1 });
  if (betaFast < betaSlow) settings.fail('beta_fast', 'must not be less than beta_slow.');
  // Unlike an absent one, null is false in transformers.
  const truncate = settings.boolean('truncate', !settings.names().includes('truncate'));
  const multiplier = (name: string): number => settings.number(name, { min: 0, max: 100, fallback: 0 });
  const own = multiplier('mscale');
  const allDim = multiplier('mscale_all_dim');
  const both = own > 0 && allDim > 0;
  const ratio = both
    ? yarnAttentionFactor(factor, own) / yarnAttentionFactor(factor, allDim)
    : yarnAttentionFactor(factor);
  const attentionFactor = settings.number('attention_factor', { min: 1e-3, max: 1e3, fallback: ratio });
  return { type: 'yarn', factor, betaFast, betaSlow, truncate, attentionFactor, originalMaxPosition };
}
