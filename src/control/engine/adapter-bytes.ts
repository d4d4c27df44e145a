/** What adapters take of the engine's memory, and which it does not take. */
import { mebibytes } from '../mebibytes.ts';
import { sizesOf } from '../models/adapter-files.ts';
import type { ComputeDType, ModelSpec } from './native.ts';
import { modulesOf, type AdapterModule } from './training.ts';

/** Outputs of one panel at most: what packing may add at both ends of a projection. */
const LARGEST_PANEL = 64;

interface Arithmetic {
  spec: ModelSpec;
  dtype: ComputeDType;
}

/** Packed, roughly. */
export function adapterBytes(
  factors: readonly { module: AdapterModule; rank: number }[],
  { spec, dtype }: Arithmetic,
): number {
  const numbers = factors.reduce((sum, { module, rank }) => {
    const [inputs, outputs] = sizesOf(module, spec);
    return sum + (rank + 1) * (inputs + 32 + outputs + 2 * LARGEST_PANEL);
  }, 0);
  return numbers * (dtype === 'bfloat16' ? 2 : 4);
}

export interface AdapterLimits extends Arithmetic {
  maxRank: number;
  maxBytes: number;
}

/** Why the engine would not load a model's adapter of this rank, on all projections of all layers; null: it would. */
export function adapterObstacle(rank: number, limits: AdapterLimits): string | null {
  const { spec, maxRank, maxBytes } = limits;
  if (rank > maxRank) {
    return `The model's adapters have rank ${rank}, and the server serves ranks of up to ${maxRank} (--max-lora-rank).`;
  }
  let bytes = 0;
  for (let layer = 0; layer < spec.layers; layer++) {
    bytes += adapterBytes(
      modulesOf(spec, layer).map((module) => ({ module, rank })),
      limits,
    );
  }
  if (bytes <= maxBytes) return null;
  return `The model's adapters need ${mebibytes(bytes)} each, and --max-adapter-memory is ${mebibytes(maxBytes)}.`;
}
