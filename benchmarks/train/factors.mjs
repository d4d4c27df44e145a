/** The adapter that is trained, as it begins. */
import { randomFrom } from '../lib/stats.mjs';
import { ALPHA, modulesOf, RANK } from './cases.mjs';

function shapeOf(spec, module) {
  const [hidden, ffn] = [spec.hiddenSize, spec.intermediateSize];
  const [queries, keys] = [spec.heads * spec.headDim, spec.kvHeads * spec.headDim];
  const shapes = {
    q: [hidden, queries],
    k: [hidden, keys],
    v: [hidden, keys],
    o: [queries, hidden],
    down: [ffn, hidden],
  };
  return shapes[module] ?? [hidden, ffn];
}

/** A as PEFT begins (uniform within 1/sqrt(in)), B small rather than 0 so that every gradient is at work. */
export function weightsOf(spec) {
  const random = randomFrom(1);
  const uniform = (count, bound) => Float32Array.from({ length: count }, () => (2 * random() - 1) * bound);
  const factors = [];
  for (let layer = 0; layer < spec.layers; layer++) {
    for (const module of modulesOf(spec)) {
      const [inputs, outputs] = shapeOf(spec, module);
      const a = uniform(RANK * inputs, 1 / Math.sqrt(inputs));
      factors.push({ layer, module, rank: RANK, a, b: uniform(outputs * RANK, 1e-3) });
    }
  }
  return { scale: ALPHA / RANK, factors };
}
