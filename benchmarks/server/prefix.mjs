/**
 * `npm run bench:prefix`: time to first token with a long shared prefix: computed, found in the prefix cache, and asked for by another
 * tenant or with another salt, who must see the time of a computed one.
 */
import { parseArgs } from 'node:util';
import { runCommand } from '../lib/command.mjs';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { median, randomFrom, rounded, spread } from '../lib/stats.mjs';
import { ensureRandomModel } from '../models/make-random-model.mjs';
import { startServer } from './own-server.mjs';

const USAGE = `npm run bench:prefix -- [options]
  --shape NAME         random weights in this shape: qwen3-0.6b (default) or small
  --start DIR          a model directory instead
  --prefix-tokens N    shared by the requests of a round (default 2000)
  --suffix-tokens N    of each request's own (default 16)
  --rounds N           each with a prefix of its own (default 3)
  --threads N          engine threads (default 2)
  --dtype NAME         arithmetic (default: as the weights)
  --json FILE          write the results there`;

const OPTIONS = {
  shape: { type: 'string', default: 'qwen3-0.6b' },
  start: { type: 'string' },
  'prefix-tokens': { type: 'string', default: '2000' },
  'suffix-tokens': { type: 'string', default: '16' },
  rounds: { type: 'string', default: '3' },
  threads: { type: 'string', default: '2' },
  dtype: { type: 'string', default: 'auto' },
  json: { type: 'string' },
  help: { type: 'boolean', default: false },
};

/** The wanted share of a computed first token. */
const WANTED = 0.15;
/** Tokens that never end an output and lie in every vocabulary used here. */
const FIRST_ID = 1000;
const IDS = 2000;

function whole(name, text) {
  const value = Number(text);
  if (Number.isInteger(value) && value > 0) return value;
  throw new Error(`--${name} must be a whole number above 0.`);
}

function tokens(count, seed) {
  const random = randomFrom(seed);
  return Array.from({ length: count }, () => FIRST_ID + Math.floor(random() * IDS));
}

/** Milliseconds to the first event of the stream, which comes with the first token, and what was found in the cache. */
async function measure({ baseUrl }, key, prompt, fields = {}) {
  const body = { prompt, max_tokens: 1, temperature: 0, stream: true, stream_options: { include_usage: true } };
  const start = performance.now();
  const response = await fetch(`${baseUrl}/completions`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${key}` },
    body: JSON.stringify({ ...body, ignore_eos: true, return_token_ids: true, ...fields }),
  });
  if (response.status !== 200) throw new Error(`status ${response.status}: ${await response.text()}`);
  let first = null;
  let text = '';
  const decoder = new TextDecoder();
  for await (const chunk of response.body) {
    first ??= performance.now() - start;
    text += decoder.decode(chunk, { stream: true });
  }
  const cached = /"cached_tokens":(\d+)/.exec(text);
  if (first === null || cached === null) throw new Error(`The stream has no token or no usage: ${text.slice(0, 300)}`);
  return { ms: first, cached: Number(cached[1]) };
}

async function runRound(server, round, { prefix, suffix }) {
  const shared = tokens(prefix, 1000 + round);
  const ask = (key, at, fields) => measure(server, key, [...shared, ...tokens(suffix, 10 * round + at)], fields);
  return {
    cold: await ask(server.apiKey, 1),
    hit: await ask(server.apiKey, 2),
    tenant: await ask(server.keys[0], 3),
    salt: await ask(server.apiKey, 4, { cache_salt: 'another' }),
  };
}

const NAMES = { cold: 'computed', hit: 'found in the cache', tenant: 'another tenant', salt: 'another salt' };

function report(rounds) {
  const kinds = Object.keys(NAMES);
  const cold = median(rounds.map((round) => round.cold.ms));
  const results = kinds.map((kind) => {
    const times = rounds.map((round) => round[kind].ms);
    const cached = [...new Set(rounds.map((round) => round[kind].cached))];
    const share = rounded(median(times) / cold);
    return { name: `prefix/${kind}`, tandem: spread(times), cached_tokens: cached, of_computed: share, unit: 'ms' };
  });
  const rows = results.map(({ tandem: ms, cached_tokens: cached, of_computed: share }, i) => [
    NAMES[kinds[i]],
    `${ms.median}`,
    `${ms.min}-${ms.max}`,
    cached.join('/'),
    `${(100 * share).toFixed(1)} %`,
  ]);
  console.log(table([['first token', 'ms (median)', 'spread', 'cached_tokens', 'of computed'], ...rows]));
  return results;
}

/** What the numbers must say whatever the machine: nobody finds what is another's. */
function check(results) {
  const of = (kind) => results.find((result) => result.name === `prefix/${kind}`);
  for (const kind of ['cold', 'tenant', 'salt'])
    if (of(kind).cached_tokens.some((count) => count !== 0)) throw new Error(`${NAMES[kind]}: cached_tokens is not 0.`);
  if (of('hit').cached_tokens.includes(0)) throw new Error('The prefix was not found again.');
  const share = of('hit').of_computed;
  const verdict = share <= WANTED ? 'reached' : 'not reached';
  console.log(
    `A hit takes ${(100 * share).toFixed(1)} % of a computed prefix; wanted: at most ${100 * WANTED} % (${verdict}).`,
  );
}

function parse() {
  const { values } = parseArgs({ options: OPTIONS });
  const sizes = {
    prefix: whole('prefix-tokens', values['prefix-tokens']),
    suffix: whole('suffix-tokens', values['suffix-tokens']),
  };
  return { ...values, sizes, rounds: whole('rounds', values.rounds) };
}

async function main({ sizes, ...values }) {
  const directory = values.start ?? ensureRandomModel(values.shape).directory;
  const length = String(Math.ceil((sizes.prefix + sizes.suffix + 16) / 16) * 16);
  const flags = [
    '--max-model-len',
    length,
    '--threads',
    values.threads,
    '--dtype',
    values.dtype,
    '--kv-cache-memory',
    '3G',
  ];
  const server = await startServer(directory, flags, ['another']);
  const rounds = [];
  try {
    await measure(server, server.apiKey, tokens(64, 1));
    for (let round = 0; round < values.rounds; round++) rounds.push(await runRound(server, round, sizes));
  } finally {
    await server.stop();
  }
  const results = report(rounds);
  check(results);
  if (values.json)
    writeJson(values.json, {
      machine: { ...machine(), ...sizes, model: values.start ?? values.shape },
      limits: {},
      cases: results,
    });
}

await runCommand(USAGE, parse, main);
