/** What share of the machine's limit a rate is: the limit is the lower of what memory and what arithmetic allow. */
import { flopsPerToken, kvBytes, weightBytes } from '../models/shapes.mjs';

/**
 * Tokens per second that the measured limits allow for a case: every weight and a case's context read once per step, and every
 * product of a weight done at the peak of the unit that the format has (BF16, or 8-bit products for quantised weights), or that of FP32 where
 * it is higher. Attention's arithmetic and everything else count as nothing.
 */
export function limitOf(shape, format, { kind, n, context = 0 }, limits) {
  const unit = format === 'bf16' ? limits.bf16_gflop_s : limits.int8_gop_s;
  const peak = Math.max(unit ?? 0, limits.fp32_gflop_s) * 1e9;
  const flops = flopsPerToken(shape);
  if (kind === 'prefill') return peak / flops.withoutLogits;
  const bytes = weightBytes(shape, format, n) + n * context * kvBytes(shape);
  return Math.min((n * limits.dram_read_gb_s * 1e9) / bytes, peak / flops.withLogits);
}

/** Median of each limit over its measurements. */
export function combineLimits(measured, median) {
  const names = Object.keys(measured[0]);
  const value = (name) => (measured[0][name] === null ? null : median(measured.map((one) => one[name])));
  return Object.fromEntries(names.map((name) => [name, value(name)]));
}
