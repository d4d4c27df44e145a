/**
 * `npm run bench:serve`: latencies and throughput of any OpenAI-compatible server under a closed loop or Poisson arrivals.
 * With --start or --shape it runs this repository's server itself; --over-engine compares that with the engine without HTTP.
 */
import { parseArgs } from 'node:util';
import { runCommand } from '../lib/command.mjs';
import { machine } from '../lib/machine.mjs';
import { pictureBeside, table, writeJson, writePicture } from '../lib/output.mjs';
import { randomFrom } from '../lib/stats.mjs';
import { barChart } from '../lib/svg.mjs';
import { KV_CACHE_BYTES } from '../lib/engine-config.mjs';
import { ensureRandomModel } from '../models/make-random-model.mjs';
import { measureAgainstPeer } from './against-peer.mjs';
import { BenchClient } from './client.mjs';
import { closedLoop, poisson } from './load.mjs';
import { summarise } from './metrics.mjs';
import { measureOverEngine } from './over-engine.mjs';
import { startServer } from './own-server.mjs';
import { drawLength, parseLength, promptMaker } from './prompts.mjs';

const USAGE = `npm run bench:serve -- [options]
  Which server (one of):
    --base-url URL       an OpenAI-compatible address, such as http://127.0.0.1:8000/v1
    --start DIR          this repository's server on a model directory
    --shape NAME         the same on a random model: qwen3-0.6b or small
  --api-key KEY          bearer token of --base-url
  --model NAME           model name (default: the first of /models)
  --server-args "..."    further flags of the server that is started
  Load:
    --concurrency N      closed loop of N clients (default 32)
    --rate R             Poisson arrivals instead, R requests per second
    --requests N         requests in all (default: 4 per client, or 100)
    --prompt-tokens N|A-B   (default 256)
    --output-tokens N|A-B   (default 128)
    --endpoint chat|completions   (default chat)
    --no-ignore-eos      do not send ignore_eos, for servers that refuse it
    --seed N             of lengths, prompts and arrivals (default 1)
  --peer                 the same load on llama.cpp behind HTTP, in turn (needs --shape; text completions, closed loop)
  --over-engine          batch decode, and a lone prompt's first token, through HTTP against the engine alone, in turn (needs --start
                         or --shape)
  --rounds N             rounds of --peer and --over-engine (default 5)
  --threads N            engine threads of the started server (default 2)
  --json FILE            write the results there, and a picture beside it`;

const OPTIONS = {
  'base-url': { type: 'string' },
  start: { type: 'string' },
  shape: { type: 'string' },
  'api-key': { type: 'string' },
  model: { type: 'string' },
  'server-args': { type: 'string', default: '' },
  concurrency: { type: 'string', default: '32' },
  rate: { type: 'string' },
  requests: { type: 'string' },
  'prompt-tokens': { type: 'string', default: '256' },
  'output-tokens': { type: 'string', default: '128' },
  endpoint: { type: 'string', default: 'chat' },
  'no-ignore-eos': { type: 'boolean', default: false },
  seed: { type: 'string', default: '1' },
  peer: { type: 'boolean', default: false },
  'over-engine': { type: 'boolean', default: false },
  rounds: { type: 'string', default: '5' },
  threads: { type: 'string', default: '2' },
  json: { type: 'string' },
  help: { type: 'boolean', default: false },
};

function positive(name, value, whole = true) {
  const number = Number(value);
  const valid = Number.isFinite(number) && number > 0 && (!whole || Number.isInteger(number));
  if (!valid) throw new Error(`--${name} must be a ${whole ? 'whole ' : ''}number above 0.`);
  return number;
}

function parse() {
  const { values } = parseArgs({ options: OPTIONS });
  const targets = ['base-url', 'start', 'shape'].filter((name) => values[name] !== undefined);
  if (!values.help && targets.length !== 1)
    throw new Error('Give one of --base-url, --start and --shape (see --help).');
  if (!['chat', 'completions'].includes(values.endpoint)) throw new Error('--endpoint must be chat or completions.');
  if (values['over-engine'] && values['base-url']) throw new Error('--over-engine needs --start or --shape.');
  if (values.peer && (!values.shape || values.rate)) throw new Error('--peer needs --shape and a closed loop.');
  if (values.peer) values.endpoint = 'completions';
  const concurrency = positive('concurrency', values.concurrency);
  return {
    ...values,
    concurrency,
    rate: values.rate === undefined ? null : positive('rate', values.rate, false),
    requests: values.requests ? positive('requests', values.requests) : values.rate ? 100 : concurrency * 4,
    prompt: parseLength('prompt-tokens', values['prompt-tokens']),
    output: parseLength('output-tokens', values['output-tokens']),
    seed: positive('seed', values.seed),
    rounds: positive('rounds', values.rounds),
    threads: positive('threads', values.threads),
  };
}

async function connect(options) {
  const directory = options.shape ? ensureRandomModel(options.shape).directory : options.start;
  const extra = options['server-args'].split(/\s+/).filter(Boolean);
  // Both sides of --over-engine have as large a KV cache: memory that is used for the first time costs a prompt a tenth of its time.
  const same = options['over-engine'] && !extra.some((arg) => arg.startsWith('--kv-cache-memory'));
  if (same) extra.push('--kv-cache-memory', String(KV_CACHE_BYTES));
  const server = directory
    ? await startServer(directory, ['--threads', String(options.threads), ...extra])
    : { baseUrl: options['base-url'], apiKey: options['api-key'], stop: async () => {} };
  try {
    const fixed = { endpoint: options.endpoint, ignoreEos: !options['no-ignore-eos'], timeoutMs: 600_000 };
    const base = { baseUrl: server.baseUrl, apiKey: server.apiKey, ...fixed };
    const model = options.model ?? (await new BenchClient(base).json('/models')).data[0].id;
    const client = new BenchClient({ ...base, model });
    const makePrompt = await promptMaker(client);
    const stop = async () => {
      client.close();
      await server.stop();
    };
    return { client, makePrompt, model, directory, stop };
  } catch (error) {
    await server.stop();
    throw error;
  }
}

function drawRequests(options, makePrompt, seed, count) {
  const random = randomFrom(seed);
  return Array.from({ length: count }, (_, i) => ({
    prompt: makePrompt(drawLength(options.prompt, random), seed * 1_000_003 + i),
    outputTokens: drawLength(options.output, random),
  }));
}

/** Of no two rounds are the prompts the same, nor those of the warm-up: a prefix cache would find them. */
async function measureLoad(options, { client, makePrompt }, round = 0) {
  const requests = drawRequests(options, makePrompt, options.seed + 2 * round, options.requests);
  const warmUp = drawRequests(options, makePrompt, options.seed + 2 * round + 1, Math.min(8, options.requests));
  // Warm-up: connections, and code that the runtime compiles when it is hot.
  await closedLoop(
    client,
    warmUp.map((one) => ({ ...one, outputTokens: 8 })),
    4,
  );
  const results = options.rate
    ? await poisson(client, requests, options.rate, options.seed)
    : await closedLoop(client, requests, options.concurrency);
  return summarise(results);
}

function caseList(name, summary) {
  const one = (value) => ({ median: value, min: value, max: value });
  const rates = ['output_tok_s', 'total_tok_s', 'requests_s'].map((key) => ({
    name: `${name}/${key}`,
    tandem: one(summary[key]),
    unit: key === 'requests_s' ? 'requests/s' : 'tok/s',
  }));
  const times = Object.entries(summary.latencies).map(([key, value]) => ({
    name: `${name}/${key}`,
    tandem: value,
    unit: 'ms',
  }));
  return [...rates, ...times];
}

function reportLoad(summary) {
  const rows = Object.entries(summary.latencies).map(([name, v]) => [
    name,
    ...[v.median, v.p90, v.p99, v.max].map(String),
  ]);
  console.log(`\n${table([['latency', 'median', 'p90', 'p99', 'max'], ...rows])}`);
  const { requests, failed, errors, seconds, prompt_tokens: prompt, output_tokens: output } = summary;
  console.log(`\n${requests} requests in ${seconds} s, ${failed} failed; ${prompt} prompt and ${output} output tokens`);
  for (const [error, count] of Object.entries(errors)) console.log(`  ${count} x ${error}`);
  console.log(
    `${summary.output_tok_s} output tok/s, ${summary.total_tok_s} total tok/s, ${summary.requests_s} requests/s`,
  );
}

function loadPicture(name, summary, facts) {
  const groups = Object.entries(summary.latencies).map(([key, value]) => ({
    name: key,
    bars: ['median', 'p90', 'p99'].map((series) => ({ series, value: value[series] ?? 0 })),
  }));
  const subtitle = `${facts.cpu}, ${summary.output_tok_s} output tok/s, ${summary.failed} of ${summary.requests} failed`;
  return barChart({ title: name, subtitle, unit: 'ms, lower is better', series: ['median', 'p90', 'p99'], groups });
}

async function main(options) {
  const facts = machine();
  const connection = await connect(options);
  try {
    const detail = { model: connection.model, prompt: options['prompt-tokens'], output: options['output-tokens'] };
    if (options['over-engine']) {
      const { result, picture } = await measureOverEngine(options, connection, facts);
      if (options.json) writeJson(options.json, { machine: { ...facts, ...detail }, limits: {}, ...result });
      if (options.json) writePicture(pictureBeside(options.json), picture);
      return;
    }
    if (options.peer) {
      const { makePrompt } = connection;
      const measure = (client, round) => measureLoad(options, { client, makePrompt }, round);
      const { result, failed } = await measureAgainstPeer(options, connection.client, measure);
      if (options.json) writeJson(options.json, { machine: { ...facts, ...detail }, limits: {}, ...result });
      if (failed > 0) process.exitCode = 1;
      return;
    }
    const name = options.rate ? `serve/poisson/${options.rate}` : `serve/closed/${options.concurrency}`;
    console.log(`${name}: ${options.requests} requests to ${connection.model}`);
    const summary = await measureLoad(options, connection);
    reportLoad(summary);
    const result = { machine: { ...facts, ...detail }, limits: {}, cases: caseList(name, summary), summary };
    if (options.json) writeJson(options.json, result);
    if (options.json) writePicture(pictureBeside(options.json), loadPicture(name, summary, facts));
    if (summary.failed > 0) process.exitCode = 1;
  } finally {
    await connection.stop();
  }
}

await runCommand(USAGE, parse, main);
