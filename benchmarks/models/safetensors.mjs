/** Writes one safetensors file: a length, a JSON header, then the tensors' bytes in order. */
import { writeSync } from 'node:fs';
import { elements } from './shapes.mjs';

const ALIGNMENT = 64;

/** Writes the header and returns each tensor's absolute offset. All tensors are BF16. */
export function beginSafetensors(fd, tensors) {
  const header = { __metadata__: { format: 'pt' } };
  let offset = 0;
  const offsets = tensors.map((tensor) => {
    const begin = offset;
    // Experts lie one behind the other, as in their one tensor.
    const { names = [tensor.name], shape } = tensor;
    const bytes = (elements(tensor) * 2) / names.length;
    for (const name of names) {
      header[name] = { dtype: 'BF16', shape: shape.slice(-2), data_offsets: [offset, offset + bytes] };
      offset += bytes;
    }
    return begin;
  });
  const text = Buffer.from(JSON.stringify(header));
  const padded = Math.ceil((text.length + 8) / ALIGNMENT) * ALIGNMENT - 8;
  const head = Buffer.alloc(8 + padded, ' ');
  head.writeBigUInt64LE(BigInt(padded), 0);
  text.copy(head, 8);
  writeSync(fd, head, 0, head.length, 0);
  return offsets.map((begin) => begin + head.length);
}
