/**
 * An adapter's factors as one array of numbers: hundreds of objects with their names would take native code milliseconds to read, on the
 * thread that hands out steps.
 */
import { ADAPTER_MODULES } from './training.ts';
import type { StoredFactors, TensorEntry } from './native.ts';

const DTYPES = ['F32', 'F16', 'BF16'];

/** Of each pair of factors: layer, module, rank, scale; then of A and of B: file, type, rows, columns, offset in bytes. */
export function adapterTable(tensors: readonly TensorEntry[], factors: readonly StoredFactors[]): Float64Array {
  const byName = new Map(tensors.map((tensor) => [tensor.name, tensor]));
  const place = (name: string): number[] => {
    const tensor = byName.get(name);
    if (!tensor) throw new Error(`The tensor ${name} is not in the table.`);
    const [rows = 0, columns = 0] = tensor.shape;
    return [tensor.file, DTYPES.indexOf(tensor.dtype), rows, columns, tensor.offset];
  };
  return Float64Array.from(
    factors.flatMap(({ layer, module, rank, scale, a, b }) => [
      ...[layer, ADAPTER_MODULES.indexOf(module), rank, scale],
      ...place(a),
      ...place(b),
    ]),
  );
}
