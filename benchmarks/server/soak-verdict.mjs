import { median } from '../lib/stats.mjs';

/** Memory may grow by so much once the server is warm. */
const MOST_GROWTH = 0.01;
/** A median of a few dozen samples varies by so much on a quiet machine. */
const MOST_SLOWDOWN = 0.03;

/**
 * The second fifth of the samples (the first is the warm-up) against the last: { start, end, growth, slowdown, flat, steady }.
 * samples: { resident_bytes, output_tok_s } at equal intervals.
 */
export function soakVerdict(samples) {
  const fifth = Math.floor(samples.length / 5);
  if (fifth < 1) throw new Error('A soak needs at least five samples.');
  const part = (from, to) => ({
    memory: median(samples.slice(from, to).map((one) => one.resident_bytes)),
    rate: median(samples.slice(from, to).map((one) => one.output_tok_s)),
  });
  const [start, end] = [part(fifth, 2 * fifth), part(samples.length - fifth, samples.length)];
  const [growth, slowdown] = [end.memory / start.memory - 1, 1 - end.rate / start.rate];
  return { start, end, growth, slowdown, flat: growth < MOST_GROWTH, steady: slowdown <= MOST_SLOWDOWN };
}
