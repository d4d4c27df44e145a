/** From the times of events to the numbers that servers are compared by. */
import { quantile, rounded } from '../lib/stats.mjs';

/** Milliseconds: to the first text, between events, per further token, of the whole request. */
function latencies(results) {
  const gaps = results.flatMap(({ times }) => times.slice(1).map((time, i) => time - times[i]));
  const perToken = results.filter(({ outputTokens, times }) => outputTokens > 1 && times.length > 1);
  return {
    ttft_ms: results.filter(({ times }) => times.length > 0).map(({ start, times }) => times[0] - start),
    itl_ms: gaps,
    tpot_ms: perToken.map(({ times, outputTokens }) => (times.at(-1) - times[0]) / (outputTokens - 1)),
    e2e_ms: results.map(({ start, end }) => end - start),
  };
}

function quantiles(values) {
  const at = (q) => rounded(quantile(values, q));
  return { median: at(0.5), min: at(0), max: at(1), p90: at(0.9), p99: at(0.99) };
}

export function summarise(results) {
  const good = results.filter(({ error }) => error === null);
  const begin = Math.min(...results.map(({ start }) => start));
  const seconds = (Math.max(...results.map(({ end }) => end)) - begin) / 1000;
  const sum = (key) => good.reduce((total, one) => total + one[key], 0);
  const errors = {};
  for (const { error } of results) if (error !== null) errors[error] = (errors[error] ?? 0) + 1;
  return {
    requests: results.length,
    failed: results.length - good.length,
    errors,
    seconds: rounded(seconds),
    prompt_tokens: sum('promptTokens'),
    output_tokens: sum('outputTokens'),
    output_tok_s: rounded(sum('outputTokens') / seconds),
    total_tok_s: rounded((sum('outputTokens') + sum('promptTokens')) / seconds),
    requests_s: rounded(good.length / seconds),
    latencies: Object.fromEntries(Object.entries(latencies(good)).map(([name, values]) => [name, quantiles(values)])),
  };
}

/**
 * Tokens per second while all of the streams decode together: from the last first event to the first last event.
 * An event may bring more than one token; each stream's tokens are spread evenly over its events.
 */
export function fullBatchRate(results) {
  const begin = Math.max(...results.map(({ times }) => times[0]));
  const end = Math.min(...results.map(({ times }) => times.at(-1)));
  const tokens = results.reduce((sum, { times, outputTokens }) => {
    const events = times.filter((time) => time > begin && time <= end).length;
    return sum + (events * outputTokens) / times.length;
  }, 0);
  return tokens / ((end - begin) / 1000);
}
