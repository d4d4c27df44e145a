/** The tensor rope_freqs.weight: what each rotary frequency is divided by. It is part of the spec, not of the weights. */
import { readExactly } from '../json-file.ts';
import { ModelError } from '../errors.ts';
import type { GgufHeader } from './header.ts';

export const ROPE_FACTORS = 'rope_freqs.weight';

export async function readRopeFactors(header: GgufHeader, headDim: number): Promise<Float32Array> {
  const fail = (problem: string): never => {
    throw new ModelError(header.file, `tensor "${ROPE_FACTORS}" ${problem}`);
  };
  const tensor = header.tensors.get(ROPE_FACTORS);
  if (!tensor) return fail('is missing.');
  const { type, shape, offset, bytes } = tensor;
  if (type !== 'F32' || shape.length !== 1 || shape[0] !== headDim / 2) {
    return fail(`must be F32 [${headDim / 2}], is ${type} ${JSON.stringify(shape)}.`);
  }
  const data = await readExactly(header.file, header.path, offset, bytes);
  const factors = Float32Array.from({ length: headDim / 2 }, (_, i) => data.readFloatLE(4 * i));
  if (!factors.every((factor) => factor > 0 && Number.isFinite(factor))) return fail('must hold positive numbers.');
  return factors;
}
