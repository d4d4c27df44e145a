/**
 * `npm run bench:token-cost`: what a token costs the server outside of its native code, as processor time of the two threads that each
 * token passes: the API process's main thread and the engine process's. Time of a thread on a processor says the same on a busy machine,
 * roughly, where the clock does not. Every round sends a batch of short answers and one of long ones: what a request costs beside its
 * tokens cancels out.
 */
import { readdirSync, readFileSync } from 'node:fs';
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { runCommand } from '../lib/command.mjs';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { rounded, spread } from '../lib/stats.mjs';
import { ensureRandomModel } from '../models/make-random-model.mjs';
import { startServer } from './own-server.mjs';

const tool = {
  type: 'function',
  function: { name: 'weather', parameters: { type: 'object', properties: { place: { type: 'string' } } } },
};

/** Fields of the requests. */
const VARIANTS = {
  stream: { stream: true },
  'logprobs-0': { stream: true, logprobs: true, top_logprobs: 0 },
  'logprobs-5': { stream: true, logprobs: true, top_logprobs: 5 },
  'token-ids': { stream: true, return_token_ids: true },
  usage: { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } },
  tools: { stream: true, tools: [tool] },
  whole: {},
};

const USAGE = `npm run bench:token-cost -- [options]
  --variants A,B     of ${Object.keys(VARIANTS).join(', ')} (default: all)
  --streams N,M      answers at once (default 256)
  --tokens N         of each long answer (default 256)
  --rounds N         (default 5)
  --json FILE        write the results there`;

const OPTIONS = {
  variants: { type: 'string', default: Object.keys(VARIANTS).join() },
  streams: { type: 'string', default: '256' },
  tokens: { type: 'string', default: '256' },
  rounds: { type: 'string', default: '5' },
  json: { type: 'string' },
  help: { type: 'boolean', default: false },
};

/** A large vocabulary over next to no model: steps are short, but still longer than what they give the API to do, so each token is an event. */
const SHAPE = 'wide';
const NATIVE_THREADS = 1;
const SETTLE_MS = 200;

function whole(name, text, least = 1) {
  const value = Number(text);
  if (Number.isInteger(value) && value >= least) return value;
  throw new Error(`--${name} must be a whole number of at least ${least}.`);
}

function parse() {
  const { values } = parseArgs({ options: OPTIONS });
  const variants = values.variants.split(',');
  const unknown = variants.find((name) => !(name in VARIANTS));
  if (unknown !== undefined) throw new Error(`--variants knows no "${unknown}".`);
  return {
    ...values,
    variants,
    streams: values.streams.split(',').map((count) => whole('streams', count)),
    tokens: whole('tokens', values.tokens, 2),
    rounds: whole('rounds', values.rounds),
  };
}

/** Microseconds that a thread has been on a processor. */
function threadMicros(pid, tid = pid) {
  return Number(readFileSync(`/proc/${pid}/task/${tid}/schedstat`, 'utf8').split(' ')[0]) / 1000;
}

function engineOf(pid) {
  const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ');
  const engine = children.find((child) => readFileSync(`/proc/${child}/cmdline`, 'utf8').includes('engine-process'));
  if (engine === undefined) throw new Error('The server has no engine process.');
  return Number(engine);
}

/** Of the main threads, and of all others: V8's, the tokenizer's and libuv's in the API process, native code's in the engine's. */
function processorTimes({ pid, engine }) {
  const others = (of) =>
    readdirSync(`/proc/${of}/task`)
      .filter((tid) => Number(tid) !== of)
      .reduce((sum, tid) => sum + threadMicros(of, tid), 0);
  return {
    api: threadMicros(pid),
    engine: threadMicros(engine),
    apiOthers: others(pid),
    engineOthers: others(engine),
  };
}

function occurrences(text, part) {
  let count = 0;
  for (let at = text.indexOf(part); at >= 0; at = text.indexOf(part, at + part.length)) count++;
  return count;
}

/** Resolves with the number of its events; rejects unless the answer has all its tokens. */
function answer({ baseUrl, apiKey, agent }, body) {
  const headers = { 'Content-Type': 'application/json', Authorization: `Bearer ${apiKey}` };
  return new Promise((resolve, reject) => {
    const request = http.request(`${baseUrl}/chat/completions`, { method: 'POST', agent, headers }, (response) => {
      let [events, finished, start] = [0, false, ''];
      response.setEncoding('latin1').on('data', (text) => {
        events += occurrences(text, 'data: ');
        finished ||= text.includes('"finish_reason":"length"');
        if (start.length < 300) start += text.slice(0, 300);
      });
      response.on('end', () => {
        if (response.statusCode === 200 && finished) resolve(events);
        else reject(new Error(`An answer has not all its tokens (${response.statusCode}): ${start}`));
      });
      response.on('error', reject);
    });
    request.on('error', reject);
    request.end(JSON.stringify(body));
  });
}

/** Answers of so many tokens, all at once: the time that they took on each thread, and how many events they had. */
async function batch(server, fields, streams, tokens) {
  const before = processorTimes(server);
  const seed = server.batches++;
  const events = await Promise.all(
    Array.from({ length: streams }, (_, index) => {
      const messages = [{ role: 'user', content: `Answer ${index} of batch ${seed}.` }];
      const sampling = { temperature: 0, ignore_eos: true, max_completion_tokens: tokens };
      return answer(server, { model: server.model, messages, ...sampling, ...fields });
    }),
  );
  await sleep(SETTLE_MS);
  const after = processorTimes(server);
  const times = Object.fromEntries(Object.keys(after).map((part) => [part, after[part] - before[part]]));
  return { ...times, events: events.reduce((sum, count) => sum + count, 0) };
}

/** Per token that the long answers have more. The short ones are long enough for the engine not to idle, and check its books, between them. */
async function measure(server, variant, streams, tokens) {
  const few = Math.ceil(tokens / 4);
  const short = await batch(server, VARIANTS[variant], streams, few);
  const long = await batch(server, VARIANTS[variant], streams, tokens);
  const more = streams * (tokens - few);
  return Object.fromEntries(Object.keys(long).map((part) => [part, (long[part] - short[part]) / more]));
}

async function open(streams, tokens) {
  const { directory } = ensureRandomModel(SHAPE);
  const length = String(Math.ceil((tokens + 128) / 16) * 16);
  const flags = ['--max-num-seqs', String(streams), '--max-model-len', length, '--threads', String(NATIVE_THREADS)];
  const server = await startServer(directory, [...flags, '--tool-call-parser', 'hermes', '--kv-cache-memory', '256M']);
  const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
  const models = await fetch(`${server.baseUrl}/models`, { headers: { Authorization: `Bearer ${server.apiKey}` } });
  const model = (await models.json()).data[0].id;
  const stop = async () => {
    agent.destroy();
    await server.stop();
  };
  return { ...server, agent, model, engine: engineOf(server.pid), batches: 1, stop };
}

async function measureAll({ variants, tokens, rounds }, streams) {
  const server = await open(streams, tokens);
  const results = new Map(variants.map((name) => [name, []]));
  try {
    for (let round = 0; round <= rounds; round++) {
      for (const name of variants) {
        const measured = await measure(server, name, streams, tokens);
        // The first one warms up.
        if (round > 0) results.get(name).push(measured);
      }
    }
  } finally {
    await server.stop();
  }
  return [...results].map(([name, measured]) => {
    const of = (part) => spread(measured.map((each) => each[part]));
    const parts = ['api', 'engine', 'apiOthers', 'engineOthers', 'events'];
    return { name: `token-cost/${streams}/${name}`, ...Object.fromEntries(parts.map((part) => [part, of(part)])) };
  });
}

function report(cases) {
  const cell = ({ median, min, max }) => `${median.toFixed(1)} (${min.toFixed(1)}-${max.toFixed(1)})`;
  const rate = ({ median }) => String(Math.round(rounded(1e6 / median)));
  const rows = cases.map(({ name, api, engine, apiOthers, engineOthers, events }) => [
    name,
    cell(api),
    rate(api),
    cell(engine),
    rate(engine),
    apiOthers.median.toFixed(1),
    engineOthers.median.toFixed(1),
    events.median.toFixed(2),
  ]);
  const header = ['us per token', 'API thread', 'tok/s', 'engine thread', 'tok/s', 'API, others', 'native', 'events'];
  console.log(table([header, ...rows]));
}

async function main(options) {
  if (process.platform !== 'linux') throw new Error("The times of single threads are read from Linux's /proc.");
  const cases = [];
  for (const streams of options.streams) cases.push(...(await measureAll(options, streams)));
  report(cases);
  if (!options.json) return;
  const { tokens, rounds } = options;
  const shown = cases.flatMap(({ name, api, engine, events }) => [
    { name: `${name}/api`, tandem: api, events: events.median, unit: 'us' },
    { name: `${name}/engine`, tandem: engine, unit: 'us' },
  ]);
  writeJson(options.json, { machine: { ...machine(), model: SHAPE, tokens, rounds }, limits: {}, cases: shown });
}

await runCommand(USAGE, parse, main);
