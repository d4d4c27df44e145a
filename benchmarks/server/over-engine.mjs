/** What HTTP, SSE, templates and the second process cost: a full batch through the server against the engine alone, in turn. */
import path from 'node:path';
import { table } from '../lib/output.mjs';
import { median, rounded, spread } from '../lib/stats.mjs';
import { barChart } from '../lib/svg.mjs';
import { Worker } from '../lib/worker.mjs';
import { prompt } from '../engine/cases.mjs';
import { closedLoop } from './load.mjs';
import { fullBatchRate } from './metrics.mjs';

const WORKER = path.resolve(import.meta.dirname, '../engine/tandem-worker.mjs');

async function throughHttp(options, { client, makePrompt }, round) {
  const requests = Array.from({ length: options.concurrency }, (_, i) => ({
    prompt: makePrompt(options.prompt.low, round * 1000 + i),
    outputTokens: options.output.low,
  }));
  const results = await closedLoop(client, requests, options.concurrency);
  const failed = results.find(({ error }) => error !== null);
  if (failed) throw new Error(`A request failed: ${failed.error}`);
  return { rate: fullBatchRate(results), promptTokens: results[0].promptTokens };
}

function engineAlone(options, engine, promptTokens, tokenizer, round) {
  const one = (i) => prompt({ tokenizer }, promptTokens, round * 1000 + i);
  const prompts = Array.from({ length: options.concurrency }, (_, i) => one(i));
  return engine.call('decode', { prompts, count: options.output.low });
}

/** The engine's process idles while the server is measured, and the other way round. */
export async function measureOverEngine(options, connection, facts) {
  const engine = new Worker('the engine alone', WORKER);
  const http = [];
  const alone = [];
  try {
    const size = { maxBatchTokens: 2048, maxModelLen: 4096, sequences: Math.max(64, options.concurrency) };
    const { tokenizer } = await engine.call('load', {
      directory: connection.directory,
      threads: options.threads,
      ...size,
    });
    for (let round = 0; round <= options.rounds; round++) {
      const { rate, promptTokens } = await throughHttp(options, connection, round);
      const other = await engineAlone(options, engine, promptTokens, tokenizer, round);
      // Round 0 warms both up.
      if (round > 0) http.push(rate) && alone.push(other);
    }
  } finally {
    engine.close();
  }
  return report(options, facts, http, alone);
}

function report(options, facts, http, alone) {
  const name = `serve/over-engine/${options.concurrency}`;
  const pairs = http.map((value, i) => value / alone[i]);
  const ratio = rounded(median(pairs));
  const [ours, other] = [spread(http), spread(alone)];
  const row = (label, one) => [label, ...[one.median, one.min, one.max].map(String)];
  console.log(`\n${table([['tok/s', 'median', 'min', 'max'], row('through HTTP', ours), row('engine alone', other)])}`);
  console.log(`${name}: ratio ${ratio} (${pairs.map((pair) => pair.toFixed(3)).join(' ')})`);
  const one = { name, tandem: ours, peer: other, peer_name: 'the engine without HTTP', ratio, unit: 'tok/s' };
  const bars = [
    { series: 'through HTTP', value: ours.median, ...ours, note: `${ratio}x` },
    { series: 'engine alone', value: other.median, ...other },
  ];
  const picture = barChart({
    title: `${options.concurrency} streams through HTTP and without`,
    subtitle: `${facts.cpu}, median of ${options.rounds} rounds with spread`,
    unit: 'tok/s, higher is better',
    series: ['through HTTP', 'engine alone'],
    groups: [{ name, bars }],
  });
  return { result: { cases: [one], samples: [{ name, tandem: http, peer: alone }] }, picture };
}
