/** Blocks of 32 weights as ggml stores them: Q8_0 is an F16 scale and 32 bytes, Q4_0 an F16 scale and 32 nibbles. */

const GROUP = 32;
const scratch = new Float32Array(1);
const scratchBits = new Uint32Array(scratch.buffer);

/** Rounds to the nearest F16, ties to even. For finite numbers below 65,504. */
function toHalf(value) {
  scratch[0] = value;
  const sign = (scratchBits[0] >>> 16) & 0x8000;
  const magnitude = Math.abs(value);
  if (magnitude < 2 ** -14) return sign | roundToEven(magnitude * 2 ** 24);
  const bits = scratchBits[0] & 0x7fffffff;
  return sign | ((bits + 0xfff + ((bits >>> 13) & 1) - 0x38000000) >>> 13);
}

function roundToEven(value) {
  const low = Math.floor(value);
  const rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2 === 1) ? low + 1 : low;
}

/** The weight of largest magnitude, with its sign. */
function extreme(weights, first) {
  let found = 0;
  for (let i = first; i < first + GROUP; i++) if (Math.abs(weights[i]) > Math.abs(found)) found = weights[i];
  return found;
}

function writeQ8(weights, first, out, at) {
  const scale = Math.abs(extreme(weights, first)) / 127;
  const inverse = scale === 0 ? 0 : 1 / scale;
  out.setUint16(at, toHalf(scale), true);
  for (let i = 0; i < GROUP; i++) out.setInt8(at + 2 + i, Math.round(weights[first + i] * inverse));
}

function writeQ4(weights, first, out, at) {
  const scale = extreme(weights, first) / -8;
  const inverse = scale === 0 ? 0 : 1 / scale;
  const level = (i) => Math.min(15, Math.trunc(weights[first + i] * inverse + 8.5));
  out.setUint16(at, toHalf(scale), true);
  for (let i = 0; i < GROUP / 2; i++) out.setUint8(at + 2 + i, level(i) | (level(i + GROUP / 2) << 4));
}

/** Whole groups of floats as blocks of q8_0 or q4_0. */
export function quantised(weights, format) {
  const [write, bytes] = format === 'q8_0' ? [writeQ8, 34] : [writeQ4, 18];
  const blocks = weights.length / GROUP;
  const out = new DataView(new ArrayBuffer(blocks * bytes));
  for (let block = 0; block < blocks; block++) write(weights, block * GROUP, out, block * bytes);
  return new Uint8Array(out.buffer);
}
