/** TrainerState as tensors: PEFT's names for the factors, the optimizer's moments beside them. */
import { type AdapterFactors, type AdapterModule, type OptimizerState, type TrainerState } from '../engine/training.ts';
import type { FloatTensor, TensorFile } from './tensor-file.ts';

const PEFT_NAMES: Record<AdapterModule, string> = {
  q: 'self_attn.q_proj',
  k: 'self_attn.k_proj',
  v: 'self_attn.v_proj',
  o: 'self_attn.o_proj',
  gate: 'mlp.gate_proj',
  up: 'mlp.up_proj',
  down: 'mlp.down_proj',
};

const MODULES = new Map(Object.entries(PEFT_NAMES).map(([module, name]) => [name, module as AdapterModule]));
const KEY = /^base_model\.model\.model\.layers\.(\d+)\.(.+)\.lora_A\.weight$/;

export function peftModuleName(module: AdapterModule): string {
  return PEFT_NAMES[module].split('.')[1] ?? '';
}

function factorKey({ layer, module }: AdapterFactors, side: 'A' | 'B'): string {
  return `base_model.model.model.layers.${layer}.${PEFT_NAMES[module]}.lora_${side}.weight`;
}

export function factorTensors(factors: readonly AdapterFactors[]): FloatTensor[] {
  return factors.flatMap((factor) => [
    { name: factorKey(factor, 'A'), shape: [factor.rank, factor.a.length / factor.rank], values: factor.a },
    { name: factorKey(factor, 'B'), shape: [factor.b.length / factor.rank, factor.rank], values: factor.b },
  ]);
}

/** In the file's order, which is that in which they were written. */
export function readFactors(file: TensorFile): AdapterFactors[] {
  const byName = new Map(file.tensors.map((tensor) => [tensor.name, tensor]));
  return file.tensors.flatMap(({ name, shape, values }) => {
    const [, layer, path = ''] = KEY.exec(name) ?? [];
    const module = MODULES.get(path);
    if (layer === undefined || module === undefined) return [];
    const b = byName.get(name.replace('.lora_A.', '.lora_B.'));
    if (!b) throw new Error(`The file has no partner of ${name}.`);
    return [{ layer: Number(layer), module, rank: shape[0] ?? 0, a: values, b: b.values }];
  });
}

const MOMENTS = ['exp_avg', 'exp_avg_sq'] as const;

export function momentTensors(factors: readonly AdapterFactors[], optimizer: OptimizerState): FloatTensor[] {
  return factorTensors(factors).flatMap(({ name, shape }, i) => {
    const pair = optimizer.moments[Math.floor(i / 2)];
    const { m, v } = (i % 2 === 0 ? pair?.a : pair?.b) ?? { m: new Float32Array(), v: new Float32Array() };
    return [
      { name: `${name}.exp_avg`, shape, values: m },
      { name: `${name}.exp_avg_sq`, shape, values: v },
    ];
  });
}

export function readMoments(factors: readonly AdapterFactors[], file: TensorFile, steps: number): OptimizerState {
  const byName = new Map(file.tensors.map((tensor) => [tensor.name, tensor.values]));
  const pairOf = (factor: AdapterFactors, side: 'A' | 'B') => {
    const [m, v] = MOMENTS.map((moment) => byName.get(`${factorKey(factor, side)}.${moment}`));
    if (!m || !v) throw new Error(`The file has no optimizer state of ${factorKey(factor, side)}.`);
    return { m, v };
  };
  return { steps, moments: factors.map((factor) => ({ a: pairOf(factor, 'A'), b: pairOf(factor, 'B') })) };
}

/** Factors and moments together. */
export function stateTensors({ weights, optimizer }: TrainerState): FloatTensor[] {
  return [...factorTensors(weights.factors), ...(optimizer ? momentTensors(weights.factors, optimizer) : [])];
}

export function stateMetadata({ weights, optimizer }: TrainerState): Record<string, string> {
  return { scale: String(weights.scale), ...(optimizer ? { optimizer_steps: String(optimizer.steps) } : {}) };
}

export function readState(file: TensorFile): TrainerState {
  const factors = readFactors(file);
  const steps = file.metadata['optimizer_steps'];
  return {
    weights: { scale: Number(file.metadata['scale']), factors },
    optimizer: steps === undefined ? null : readMoments(factors, file, Number(steps)),
  };
}
