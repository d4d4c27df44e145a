/** Random weights from one integer hash, so that a model is a shape and a seed and nothing has to be kept. */

const scratch = new Float32Array(1);
const scratchBits = new Uint32Array(scratch.buffer);

/** Rounds to the nearest BF16, ties to even. Finite input only. */
function toBf16(value) {
  scratch[0] = value;
  const bits = scratchBits[0];
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

export function fromBf16(bits) {
  scratchBits[0] = bits << 16;
  return scratch[0];
}

/** A full-avalanche mix of the index and the tensor's seed: 32 bits. */
function hash(index, seed) {
  let x = Math.imul(index ^ seed, 0x9e3779b1) + seed;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return (x ^ (x >>> 16)) >>> 0;
}

/** All 65,536 values that one tensor's weights can take: uniform with the tensor's deviation, or 1 +- 10 % for a norm. */
function valueTable(tensor) {
  const width = tensor.norm ? 0.1 : Math.sqrt(3) * tensor.deviation;
  const centre = tensor.norm ? 1 : 0;
  return Uint16Array.from({ length: 65_536 }, (_, i) => toBf16(centre + width * ((i + 0.5) / 32_768 - 1)));
}

/** Yields the tensor's BF16 bits in order, in pieces; the piece is reused. */
export function* weightPieces(tensor, count, seed) {
  const table = valueTable(tensor);
  const piece = new Uint16Array(Math.min(count, 1 << 20));
  for (let begin = 0; begin < count; begin += piece.length) {
    const length = Math.min(piece.length, count - begin);
    for (let i = 0; i < length; i++) piece[i] = table[hash(begin + i, seed) >>> 16];
    yield piece.subarray(0, length);
  }
}
