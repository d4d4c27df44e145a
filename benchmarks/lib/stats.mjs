/** Medians and quantiles of small samples. */

/** Linear interpolation between the two nearest ranks; NaN of nothing. */
export function quantile(values, q) {
  if (values.length === 0) return NaN;
  const sorted = [...values].sort((a, b) => a - b);
  const at = (sorted.length - 1) * q;
  const low = Math.floor(at);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
}

export function median(values) {
  return quantile(values, 0.5);
}

/** Four significant digits: more would be noise. */
export function rounded(value) {
  return Number.isFinite(value) ? Number(value.toPrecision(4)) : null;
}

export function spread(values) {
  return { median: rounded(median(values)), min: rounded(Math.min(...values)), max: rounded(Math.max(...values)) };
}

/** A generator of uniform numbers in [0, 1) from a 32-bit seed. */
export function randomFrom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 4_294_967_296;
  };
}
