/** What share of the machine's limit a rate is: the limit is the lower of what memory and what arithmetic allow. */
import { flopsPerToken, weightBytes } from '../models/shapes.mjs';

/**
 * Tokens per second that the measured limits allow for a case: every weight read once per step, and every product of a weight
 * done at the peak of the unit that the format has (BF16, or 8-bit products for quantised weights; FP32 where there is none). Attention
 * and everything else count as nothing.
 */
export function limitOf(shape, format, { kind, n }, limits) {
  const unit = format === 'bf16' ? limits.bf16_gflop_s : limits.int8_gop_s;
  const peak = (unit ?? limits.fp32_gflop_s) * 1e9;
  const flops = flopsPerToken(shape);
  if (kind === 'prefill') return peak / flops.withoutLogits;
  return Math.min((n * limits.dram_read_gb_s * 1e9) / weightBytes(shape, format), peak / flops.withLogits);
}

/** Median of each limit over its measurements. */
export function combineLimits(measured, median) {
  const names = Object.keys(measured[0]);
  const value = (name) => (measured[0][name] === null ? null : median(measured.map((one) => one[name])));
  return Object.fromEntries(names.map((name) => [name, value(name)]));
}
