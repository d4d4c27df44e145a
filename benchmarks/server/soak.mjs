/**
 * `npm run bench:soak`: a closed loop against this repository's server for a long time. Its memory must stay flat once it is warm, and
 * it must be no slower at the end than at the start.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { runCommand } from '../lib/command.mjs';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { randomFrom, rounded, spread } from '../lib/stats.mjs';
import { ensureRandomModel } from '../models/make-random-model.mjs';
import { BenchClient } from './client.mjs';
import { startServer } from './own-server.mjs';
import { promptMaker } from './prompts.mjs';
import { soakVerdict } from './soak-verdict.mjs';

const USAGE = `npm run bench:soak -- [options]
  --shape NAME       random model: small (default) or qwen3-0.6b
  --minutes M        (default 20)
  --concurrency N    clients of the closed loop (default 16)
  --threads N        engine threads (default 2)
  --server-args "..."   further flags of the server
  --json FILE        write the samples there`;

const SAMPLE_MS = 5000;
/** Some clients leave in the middle of their answer: that must cost nothing that lasts. */
const LEAVES_ONE_IN = 10;

/** Resident bytes of a process and all its descendants. */
function residentBytes(root) {
  const parents = new Map();
  const resident = new Map();
  for (const name of readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))) {
    try {
      const status = readFileSync(`/proc/${name}/status`, 'utf8');
      parents.set(Number(name), Number(/^PPid:\s+(\d+)/m.exec(status)?.[1]));
      resident.set(Number(name), 1024 * Number(/^VmRSS:\s+(\d+)/m.exec(status)?.[1] ?? 0));
    } catch {
      // It has ended since the folder was read.
    }
  }
  const below = (pid) => pid === root || (parents.has(pid) && below(parents.get(pid)));
  return [...resident].filter(([pid]) => below(pid)).reduce((sum, [, bytes]) => sum + bytes, 0);
}

/** One client: prompts of 16 to 512 tokens, answers of 1 to 128, until the time is over. */
async function client(connection, makePrompt, seed, state) {
  const random = randomFrom(seed);
  for (let turn = 0; Date.now() < state.until; turn++) {
    const prompt = makePrompt(16 + Math.floor(random() * 496), seed * 100_003 + turn);
    const leaves = random() < 1 / LEAVES_ONE_IN;
    const result = await connection.stream(prompt, 1 + Math.floor(random() * 127), leaves ? 3 : Infinity);
    if (result.error !== null) state.errors.push(result.error);
    state.tokens += leaves ? result.times.length : result.outputTokens;
  }
}

async function soak(options, server, connection, makePrompt) {
  const state = { until: Date.now() + options.minutes * 60_000, tokens: 0, errors: [] };
  const clients = Array.from({ length: options.concurrency }, (_, i) => client(connection, makePrompt, i + 1, state));
  const samples = [];
  let [at, tokens] = [Date.now(), 0];
  while (Date.now() < state.until) {
    await sleep(SAMPLE_MS);
    const now = Date.now();
    const rate = (state.tokens - tokens) / ((now - at) / 1000);
    samples.push({ resident_bytes: residentBytes(server.pid), output_tok_s: rounded(rate) });
    [at, tokens] = [now, state.tokens];
  }
  await Promise.all(clients);
  return { samples, errors: state.errors };
}

function parse() {
  const { values } = parseArgs({
    options: {
      shape: { type: 'string', default: 'small' },
      minutes: { type: 'string', default: '20' },
      concurrency: { type: 'string', default: '16' },
      threads: { type: 'string', default: '2' },
      'server-args': { type: 'string', default: '' },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  const number = (name) => {
    const value = Number(values[name]);
    if (!(value > 0)) throw new Error(`--${name} must be a number above 0.`);
    return value;
  };
  return { ...values, minutes: number('minutes'), concurrency: number('concurrency'), threads: number('threads') };
}

async function main(options) {
  const extra = options['server-args'].split(/\s+/).filter(Boolean);
  const { directory } = ensureRandomModel(options.shape);
  const server = await startServer(directory, ['--threads', String(options.threads), ...extra]);
  const fixed = { endpoint: 'completions', ignoreEos: true, timeoutMs: 600_000 };
  const base = { baseUrl: server.baseUrl, apiKey: server.apiKey, ...fixed };
  const connection = new BenchClient({ ...base, model: (await new BenchClient(base).json('/models')).data[0].id });
  try {
    const { samples, errors } = await soak(options, server, connection, await promptMaker(connection));
    const verdict = soakVerdict(samples);
    const mib = (bytes) => (bytes / 2 ** 20).toFixed(1);
    const row = (name, part) => [name, mib(part.memory), String(rounded(part.rate))];
    console.log(table([['', 'MiB', 'tok/s'], row('once warm', verdict.start), row('at the end', verdict.end)]));
    console.log(
      `memory ${(100 * verdict.growth).toFixed(2)} %, speed ${(100 * verdict.slowdown).toFixed(2)} % lower, ${errors.length} errors`,
    );
    if (options.json) {
      const rates = spread(samples.map((sample) => sample.output_tok_s));
      const cases = [{ name: `soak/${options.concurrency}`, tandem: rates, unit: 'tok/s' }];
      writeJson(options.json, { machine: machine(), limits: {}, cases, verdict, samples, errors: errors.slice(0, 20) });
    }
    if (!verdict.flat || !verdict.steady || errors.length > 0) process.exitCode = 1;
  } finally {
    connection.close();
    await server.stop();
  }
}

await runCommand(USAGE, parse, main);
