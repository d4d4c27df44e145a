/**
 * `npm run soak:publications`: publishes thousands of versions of an adapter of the starter model while streams decode, and compares the
 * time between a stream's tokens with that of the same streams without publications, in turn. Every stream's bits are checked.
 */
import { parseArgs } from 'node:util';
import { runCommand } from '../lib/command.mjs';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { median, quantile, rounded, spread } from '../lib/stats.mjs';
import { Soak } from './soak.mjs';

const USAGE = `npm run soak:publications -- [options]
  --publications N   in all (default 10000)
  --rounds N         rounds of without, with, without, with ... (default 5)
  --streams N        streams that decode all the time (default 8)
  --interval-ms N    from one publication to the next, where they are faster than that (default 16)
  --json FILE        write the results there`;

/** More than this is a stalled stream. */
const MOST_P99 = 1.5;
/** What an allocator may keep. */
const MOST_GROWTH = 1.05;

function parse() {
  const { values } = parseArgs({
    options: {
      publications: { type: 'string', default: '10000' },
      rounds: { type: 'string', default: '5' },
      streams: { type: 'string', default: '8' },
      'interval-ms': { type: 'string', default: '16' },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  const whole = (name) => {
    const value = Number(values[name]);
    if (!Number.isInteger(value) || value < 1) throw new Error(`--${name} must be a whole number of at least 1.`);
    return value;
  };
  const numbers = Object.fromEntries(
    ['publications', 'rounds', 'streams', 'interval-ms'].map((name) => [name, whole(name)]),
  );
  return { ...values, ...numbers };
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function publishAll(soak, count, intervalMs) {
  const times = [];
  for (let index = 0; index < count; index++) {
    const began = performance.now();
    await soak.publish();
    times.push(performance.now() - began);
    await sleep(Math.max(0, intervalMs - times.at(-1)));
  }
  return times;
}

/** One round: without and with publications, about the same time each; `times` gets the publications' own milliseconds. */
async function round(soak, count, intervalMs, times) {
  const without = await soak.load(() => sleep((count * intervalMs) / 3));
  const withThem = await soak.load(async () => times.push(...(await publishAll(soak, count, intervalMs))));
  const p99 = [quantile(without.gaps, 0.99), quantile(withThem.gaps, 0.99)];
  const most = [Math.max(...without.gaps.slice(0, 100_000)), withThem.gaps.reduce((a, b) => Math.max(a, b), 0)];
  return { without, withThem, p99, most, memory: soak.memory() };
}

function report(options, rounds, times) {
  const ratios = rounds.map(({ p99: [before, during] }) => during / before);
  const p50 = (side) => spread(rounds.map((each) => quantile(each[side].gaps, 0.5)));
  const p99 = (at) => spread(rounds.map((each) => each.p99[at]));
  const row = (name, { median: middle, min, max }) => [name, String(middle), String(min), String(max)];
  console.log(
    table([
      ['time between tokens, ms', 'median', 'min', 'max'],
      row('p50 without', p50('without')),
      row('p50 with', p50('withThem')),
      row('p99 without', p99(0)),
      row('p99 with', p99(1)),
      row('longest without', spread(rounds.map(({ most }) => most[0]))),
      row('longest with', spread(rounds.map(({ most }) => most[1]))),
      row('p99 ratio', spread(ratios)),
    ]),
  );
  const rss = rounds.map(({ memory }) => Math.round(memory.rss / 2 ** 20));
  console.log(
    `  ${times.length} publications of ${rounded(median(times))} ms (p99 ${rounded(quantile(times, 0.99))} ms)`,
  );
  console.log(`  RSS of the engine process after each round, MiB: ${rss.join(', ')}`);
  console.log(`  native adapters after each round: ${rounds.map(({ memory }) => memory.adapters.native).join(', ')}`);
  const requests = rounds.reduce((sum, { without, withThem }) => sum + without.requests + withThem.requests, 0);
  console.log(`  ${requests} streams, each with the bits of its version`);
  const result = {
    name: 'publications',
    publications: times.length,
    p99_ratio: spread(ratios),
    p99_ms: { without: p99(0), with: p99(1) },
    publication_ms: { median: rounded(median(times)), p99: rounded(quantile(times, 0.99)) },
    rss_mib: rss,
    native_adapters: rounds.map(({ memory }) => memory.adapters.native),
    streams: requests,
  };
  if (options.json !== undefined) writeJson(options.json, { machine: machine(), cases: [result] });
  const grown = rss.at(-1) / rss[0];
  if (median(ratios) > MOST_P99) throw new Error(`The p99 grew ${rounded(median(ratios))} times; at most ${MOST_P99}.`);
  if (grown > MOST_GROWTH) throw new Error(`The engine's memory grew ${rounded(grown)} times.`);
}

async function main(options) {
  const soak = await Soak.start(options);
  const rounds = [];
  const times = [];
  const count = Math.ceil(options.publications / options.rounds);
  try {
    // Warms up both sides; not counted.
    await round(soak, Math.min(count, 100), options['interval-ms'], []);
    for (let index = 0; index < options.rounds; index++)
      rounds.push(await round(soak, count, options['interval-ms'], times));
    report(options, rounds, times);
  } finally {
    await soak.close();
  }
}

await runCommand(USAGE, parse, main);
