/** The adapter that a model starts from: A random as PEFT draws it, B zero, so that it changes nothing. */
import type { ModelSpec } from '../engine/native.ts';
import { modulesOf, type AdapterFactors, type AdapterWeights } from '../engine/training.ts';
import { sizesOf } from '../models/adapter-files.ts';
import { seededRandom } from './random.ts';

export interface AdapterShape {
  rank: number;
  alpha: number;
}

export const DEFAULT_ADAPTER_SHAPE: AdapterShape = { rank: 8, alpha: 16 };

/**
 * The same for the same model id, whenever it is asked for. Order of factors: layers, then ADAPTER_MODULES as far as
 * the layer has them. Drawing millions of numbers takes a while: others get their turn after each factor.
 */
export async function identityAdapter(
  spec: ModelSpec,
  modelId: string,
  { rank, alpha }: AdapterShape = DEFAULT_ADAPTER_SHAPE,
): Promise<AdapterWeights> {
  const random = seededRandom(`adapter ${modelId}`);
  const factors: AdapterFactors[] = [];
  for (let layer = 0; layer < spec.layers; layer++) {
    for (const module of modulesOf(spec, layer)) {
      const [inputs, outputs] = sizesOf(module, spec);
      // kaiming_uniform_(a = sqrt(5)).
      const bound = 1 / Math.sqrt(inputs);
      const a = new Float32Array(rank * inputs);
      for (let i = 0; i < a.length; i++) a[i] = (random() * 2 - 1) * bound;
      factors.push({ layer, module, rank, a, b: new Float32Array(outputs * rank) });
      await new Promise((resolve) => setImmediate(resolve));
    }
  }
  return { scale: alpha / rank, factors };
}
