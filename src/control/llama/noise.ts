/** The randomness of (seed, choice, output index): as in native/src/ops/sampling.h, a hash without a state, so that a replay draws the same. */

const BITS = 64;
const INDEX_FACTOR = 0xd1342543de82ef95n;
/** llama.cpp takes this seed as "any". */
const ANY_SEED = 2 ** 32 - 1;

/** SplitMix64's finaliser. */
function mix(value: bigint): bigint {
  let z = BigInt.asUintN(BITS, value + 0x9e3779b97f4a7c15n);
  z = BigInt.asUintN(BITS, (z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
  z = BigInt.asUintN(BITS, (z ^ (z >> 27n)) * 0x94d049bb133111ebn);
  return z ^ (z >> 31n);
}

function hash(seed: bigint, choice: number, index: number): bigint {
  const place = BigInt.asUintN(BITS, BigInt(index) * INDEX_FACTOR);
  return mix(mix(mix(BigInt.asUintN(BITS, seed)) ^ BigInt(choice)) ^ place);
}

/** In [0, 1). */
export function uniform(seed: bigint, choice: number, index: number): number {
  return Number(hash(seed, choice, index) >> 11n) * 2 ** -53;
}

/** For a generator that draws once. */
export function seedOf(seed: bigint, choice: number, index: number): number {
  const bits = Number(hash(seed, choice, index) >> 32n);
  return bits === ANY_SEED ? 0 : bits;
}
