/** Histograms whose counts are kept outside of the metrics library: it looks the labels up at each observation, and other processes count too. */
import type { Metric } from 'prom-client';

export interface BucketCount {
  /** By bound: each value is counted once, at the lowest that holds it; a last count is of larger ones. */
  readonly counts: readonly number[];
  readonly sum: number;
}

/** For what is observed with every token. */
export class Buckets implements BucketCount {
  readonly counts: number[];
  sum = 0;
  readonly #bounds: readonly number[];

  constructor(bounds: readonly number[]) {
    this.#bounds = bounds;
    this.counts = Array.from({ length: bounds.length + 1 }, () => 0);
  }

  observe(value: number): void {
    let at = 0;
    while (at < this.#bounds.length && value > (this.#bounds[at] as number)) at++;
    this.counts[at] = (this.counts[at] as number) + 1;
    this.sum += value;
  }
}

export function countedHistogram(
  { name, help, labels }: { name: string; help: string; labels: Record<string, string> },
  bounds: readonly number[],
  read: () => BucketCount,
): Metric {
  const get = () => {
    const { counts, sum } = read();
    let total = 0;
    const buckets = [...bounds, '+Inf'].map((le, at) => {
      total += counts[at] ?? 0;
      return { labels: { ...labels, le }, value: total, metricName: `${name}_bucket` };
    });
    const whole = (suffix: string, value: number) => ({ labels, value, metricName: `${name}_${suffix}` });
    const values = [...buckets, whole('sum', sum), whole('count', total)];
    return Promise.resolve({ name, help, type: 'histogram', aggregator: 'sum', values });
  };
  return { name, help, get, reset() {} } as unknown as Metric;
}
