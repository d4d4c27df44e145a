/** Pearson's test of counts against probabilities. */

/** Categories that expect fewer than 5 are pooled. */
export function chiSquare(counts: number[], probabilities: number[]): { statistic: number; freedom: number } {
  const total = counts.reduce((sum, count) => sum + count, 0);
  let statistic = 0;
  let freedom = -1;
  let pooled = { count: 0, expected: 0 };
  const add = (count: number, expected: number) => {
    statistic += (count - expected) ** 2 / expected;
    freedom += 1;
  };
  counts.forEach((count, index) => {
    const expected = probabilities[index]! * total;
    if (expected >= 5) add(count, expected);
    else pooled = { count: pooled.count + count, expected: pooled.expected + expected };
  });
  if (pooled.expected >= 5) add(pooled.count, pooled.expected);
  return { statistic, freedom };
}

/** Exceeded by chance once in 10,000 (Wilson and Hilferty's approximation; infinite freedom of choice needs none). */
export function criticalValue(freedom: number): number {
  if (freedom <= 0) return 1e-9;
  const spread = 2 / (9 * freedom);
  return freedom * (1 - spread + 3.719 * Math.sqrt(spread)) ** 3;
}
