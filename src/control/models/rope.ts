/** Rotary settings of config.json, in the old layout (rope_theta + rope_scaling) and the new one (rope_parameters). */
import type { ModelSpec } from '../engine/native.ts';
import type { Fields } from './fields.ts';
import { MAX_POSITIONS } from './limits.ts';

export interface Rope {
  theta: number;
  scaling: ModelSpec['ropeScaling'];
}

const DEFAULT_THETA = 10_000;
const MAX_THETA = 1e15;

const KEYS: Record<string, readonly string[]> = {
  default: [],
  linear: ['factor'],
  llama3: ['factor', 'low_freq_factor', 'high_freq_factor', 'original_max_position_embeddings'],
};

export function readRope(config: Fields): Rope {
  const parameters = config.object('rope_parameters');
  const scaling = config.object('rope_scaling');
  const top = config.has('rope_theta') ? readTheta(config) : undefined;
  const settings = parameters ?? scaling;
  if (!settings) return { theta: top ?? DEFAULT_THETA, scaling: { type: 'none' } };
  const inner = settings.has('rope_theta') ? readTheta(settings) : undefined;
  if (inner !== undefined && top !== undefined && inner !== top) {
    settings.fail('rope_theta', `is ${inner} but rope_theta is ${top}.`);
  }
  const rope = { theta: inner ?? top ?? DEFAULT_THETA, scaling: readScaling(settings) };
  if (parameters && scaling && JSON.stringify(readScaling(scaling)) !== JSON.stringify(rope.scaling)) {
    config.fail('rope_scaling', 'disagrees with rope_parameters.');
  }
  return rope;
}

function readTheta(fields: Fields): number {
  return fields.number('rope_theta', { min: 1, max: MAX_THETA });
}

function readScaling(settings: Fields): Rope['scaling'] {
  const type = settings.string('rope_type') ?? settings.string('type') ?? 'default';
  const known = KEYS[Object.hasOwn(KEYS, type) ? type : ''];
  if (!known) settings.fail('rope_type', `${JSON.stringify(type)} is not supported (default, linear, llama3 are).`);
  for (const name of settings.names()) {
    if (name === 'rope_theta' || name === 'rope_type' || name === 'type' || known.includes(name)) continue;
    if (name === 'partial_rotary_factor' && settings.get(name) === 1) continue;
    if (settings.has(name)) settings.fail(name, `is not supported with rope type ${type}.`);
  }
  if (type === 'linear') return { type, factor: readFactor(settings) };
  if (type === 'llama3') return readLlama3(settings);
  return { type: 'none' };
}

function readFactor(settings: Fields): number {
  return settings.number('factor', { min: 1, max: 65_536 });
}

function readLlama3(settings: Fields): Rope['scaling'] {
  const lowFreqFactor = settings.number('low_freq_factor', { min: 1e-6, max: 1e6 });
  const highFreqFactor = settings.number('high_freq_factor', { min: 1e-6, max: 1e6 });
  if (highFreqFactor <= lowFreqFactor) settings.fail('high_freq_factor', 'must be greater than low_freq_factor.');
  const originalMaxPosition = settings.integer('original_max_position_embeddings', { max: MAX_POSITIONS });
  return { type: 'llama3', factor: readFactor(settings), lowFreqFactor, highFreqFactor, originalMaxPosition };
}
