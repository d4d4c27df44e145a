/**
 * What HTTP, SSE, templates and the second process cost: a full batch, and the first token of a lone prompt, through the server against
 * the engine alone, in turn.
 */
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

/** Prompt tokens per second until the first token of a lone prompt: through HTTP, and of the engine on as many tokens. */
async function firstToken(options, { client, makePrompt }, engine, tokenizer, round) {
  const result = await client.stream(makePrompt(options.prompt.low, round * 1000 + 999), 1);
  if (result.error !== null) throw new Error(`A request failed: ${result.error}`);
  if (result.times.length === 0) throw new Error('The first token of a lone prompt brought no text.');
  const http = result.promptTokens / ((result.times[0] - result.start) / 1000);
  const ids = prompt({ tokenizer }, result.promptTokens, round * 1000 + 999);
  return { http, alone: await engine.call('prefill', { prompts: [ids] }) };
}

/** The engine's process idles while the server is measured, and the other way round. */
export async function measureOverEngine(options, connection, facts) {
  const engine = new Worker('the engine alone', WORKER);
  const batch = { http: [], alone: [] };
  const lone = { http: [], alone: [] };
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
      const first = await firstToken(options, connection, engine, tokenizer, round);
      // Round 0 warms both up.
      if (round === 0) continue;
      batch.http.push(rate);
      batch.alone.push(other);
      lone.http.push(first.http);
      lone.alone.push(first.alone);
    }
  } finally {
    engine.close();
  }
  return report(options, facts, [
    { name: `serve/over-engine/${options.concurrency}`, ...batch },
    { name: `serve/first-token/${options.prompt.low}`, ...lone },
  ]);
}

/** Prints one case; its part of the result and of the picture. */
function reportCase({ name, http, alone }) {
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
  return { one, sample: { name, tandem: http, peer: alone }, group: { name, bars } };
}

function report(options, facts, measured) {
  const parts = measured.map(reportCase);
  const picture = barChart({
    title: `${options.concurrency} streams, and a lone prompt's first token, through HTTP and without`,
    subtitle: `${facts.cpu}, median of ${options.rounds} rounds with spread`,
    unit: 'tok/s, higher is better',
    series: ['through HTTP', 'engine alone'],
    groups: parts.map(({ group }) => group),
  });
  return { result: { cases: parts.map(({ one }) => one), samples: parts.map(({ sample }) => sample) }, picture };
}
