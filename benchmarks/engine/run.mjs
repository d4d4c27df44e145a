/**
 * `npm run bench:engine`: prefill and decode of Tandem's engine against llama.cpp, on the same random weights and threads.
 * Both run in turn, each in a process of its own; the machine's limits are measured in every round beside them.
 */
import { parseArgs } from 'node:util';
import path from 'node:path';
import { runCommand } from '../lib/command.mjs';
import { machine } from '../lib/machine.mjs';
import { pictureBeside, table, writeJson, writePicture } from '../lib/output.mjs';
import { median, rounded, spread } from '../lib/stats.mjs';
import { barChart } from '../lib/svg.mjs';
import { Worker } from '../lib/worker.mjs';
import { measureLimits, measureReadBandwidth } from '../limits/limits.mjs';
import { ensureQuantisedGguf, ensureRandomModel } from '../models/make-random-model.mjs';
import { weightBytes } from '../models/shapes.mjs';
import { caseName, cases, prompt, promptsOf } from './cases.mjs';
import { ensurePeers, PEER_NAME } from './peers.mjs';
import { combineLimits, limitOf } from './shares.mjs';

const USAGE = `npm run bench:engine -- [options]
  --shape NAME        qwen3-0.6b (default), qwen3-moe or small
  --format NAME       bf16 (default), q8_0 or q4_0: both engines read the same GGUF file of that format
  --rounds N          rounds of A B A B (default 5)
  --threads N         threads of both engines (default 2)
  --only TEXT         only cases whose name contains TEXT
  --max-batch-tokens N  tokens of one Tandem step (default 2048)
  --isa NAME          force Tandem's instruction set (TANDEM_ISA)
  --peer-backend NAME   force llama.cpp's CPU back-end (haswell is AVX2 without AVX-512)
  --no-peer           Tandem alone
  --json FILE         write the results there, and a picture beside it`;

const FORMATS = ['bf16', 'q8_0', 'q4_0'];
/** Per round: what one stream reads of the bandwidth is measured more often, as it moves most. */
const READINGS = 3;
const GREEDY = { prompts: 4, length: 24, count: 16 };
/** Room for the cases with a context and the others' prompts beside them. */
const SIZES = { maxModelLen: 4224, sequences: 32, kvCacheBytes: 3 * 2 ** 30 };

function parse() {
  const { values } = parseArgs({
    options: {
      shape: { type: 'string', default: 'qwen3-0.6b' },
      format: { type: 'string', default: 'bf16' },
      rounds: { type: 'string', default: '5' },
      threads: { type: 'string', default: '2' },
      only: { type: 'string', default: '' },
      'max-batch-tokens': { type: 'string', default: '2048' },
      isa: { type: 'string' },
      'peer-backend': { type: 'string' },
      'no-peer': { type: 'boolean', default: false },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  const number = (name) => {
    const value = Number(values[name]);
    if (!Number.isInteger(value) || value < 1) throw new Error(`--${name} must be a whole number of at least 1.`);
    return value;
  };
  if (!FORMATS.includes(values.format)) throw new Error('--format must be bf16, q8_0 or q4_0.');
  return {
    ...values,
    rounds: number('rounds'),
    threads: number('threads'),
    maxBatchTokens: number('max-batch-tokens'),
  };
}

/** Loads both engines; each is idle while the other is measured. */
async function startEngines(options, model) {
  const file = (name) => path.join(import.meta.dirname, name);
  const env = options.isa ? { TANDEM_ISA: options.isa } : {};
  const tandem = new Worker('Tandem', file('tandem-worker.mjs'), env);
  const size = { maxBatchTokens: options.maxBatchTokens, ...SIZES };
  const source = options.format === 'bf16' ? model.directory : model.gguf;
  const { variant } = await tandem.call('load', { directory: source, threads: options.threads, ...size });
  console.log(`  ${variant}`);
  if (options['no-peer']) return { tandem, peer: null, variants: [variant] };
  const peer = new Worker('llama.cpp', file('llama-worker.mjs'));
  const other = await peer.call('load', {
    gguf: model.gguf,
    threads: options.threads,
    backend: options['peer-backend'],
  });
  console.log(`  ${other.variant}`);
  return { tandem, peer, variants: [variant, other.variant] };
}

/** Greedy tokens of both on a few prompts. Random weights leave near ties, so a stream may part late; it may not start apart. */
async function compareOutputs({ tandem, peer }, shape) {
  const prompts = Array.from({ length: GREEDY.prompts }, (_, i) => prompt(shape, GREEDY.length, 900 + i));
  const [ours, theirs] = [
    await tandem.call('greedy', { prompts, count: GREEDY.count }),
    await peer.call('greedy', { prompts, count: GREEDY.count }),
  ];
  const agreed = ours.map((ids, i) => {
    const first = ids.findIndex((id, at) => id !== theirs[i][at]);
    return first < 0 ? ids.length : first;
  });
  console.log(`  greedy tokens equal before the first difference: ${agreed.join(', ')} of ${GREEDY.count}`);
  if (agreed.filter((count) => count > 0).length < GREEDY.prompts - 1) {
    throw new Error('The engines do not compute the same: nothing was timed.');
  }
  return agreed;
}

/** Warms every case up and finds which attention variant of the peer is faster for it: that one is measured. */
async function warmUp({ tandem, peer }, chosen, shape) {
  const variants = new Map();
  for (const one of chosen) {
    const argument = { prompts: promptsOf(shape, one, 0), context: one.context };
    await tandem.call(one.kind, argument);
    if (!peer) continue;
    const off = await peer.call(one.kind, { ...argument, flashAttention: false });
    const on = await peer.call(one.kind, { ...argument, flashAttention: true });
    variants.set(one, on > off);
  }
  return variants;
}

async function measure({ tandem, peer }, chosen, options, shape, flash) {
  const runs = chosen.map((one) => ({ one, tandem: [], peer: [] }));
  const limits = [];
  for (let round = 1; round <= options.rounds; round++) {
    limits.push(await measureLimits(options.threads));
    for (const run of runs) {
      const argument = { prompts: promptsOf(shape, run.one, round), context: run.one.context };
      run.tandem.push(await tandem.call(run.one.kind, argument));
      if (peer) run.peer.push(await peer.call(run.one.kind, { ...argument, flashAttention: flash.get(run.one) }));
    }
    console.log(`  round ${round} of ${options.rounds} done`);
  }
  return { runs, limits };
}

/** Memory is shared with others: its bandwidth moves by half within minutes. So what one stream reads is compared with what reading alone
 * gets right before and after, a second of it each. */
async function measureReading({ tandem }, runs, { threads, rounds }, shape, format) {
  const run = runs.find(({ one }) => one.kind === 'decode' && one.n === 1 && !one.context);
  if (!run) return;
  run.shares = [];
  for (let round = 1; round <= rounds * READINGS; round++) {
    const before = await measureReadBandwidth(threads);
    const rate = await tandem.call('decode', { prompts: promptsOf(shape, run.one, rounds + round) });
    const after = await measureReadBandwidth(threads);
    run.shares.push((rate * weightBytes(shape, format)) / (((before.mean + after.mean) / 2) * 1e9));
  }
  const { median: share, min, max } = spread(run.shares.map((value) => value * 100));
  console.log(`  one stream reads ${share} % (${min} to ${max}) of the bandwidth right before and after it`);
}

function caseResult({ one, tandem, peer, shares }, shape, format, limits) {
  const result = { name: caseName(format, one), tandem: spread(tandem) };
  if (peer.length > 0) {
    result.peer = spread(peer);
    result.peer_name = PEER_NAME;
    result.ratio = rounded(median(tandem.map((value, i) => value / peer[i])));
  }
  const share = shares ? median(shares) : median(tandem) / limitOf(shape, format, one, limits);
  return { ...result, limit_share: rounded(share), unit: 'tok/s' };
}

function report(results, runs) {
  const header = ['case (tok/s)', 'tandem', 'min', 'max', 'peer', 'min', 'max', 'ratio', 'pairwise', 'of limit'];
  const cell = (value) => (value === undefined || value === null ? '-' : String(value));
  const rows = results.map(({ name, tandem, peer, ratio, limit_share: share }, i) => {
    const pairs = runs[i].peer.map((value, round) => (runs[i].tandem[round] / value).toFixed(2));
    const numbers = [tandem.median, tandem.min, tandem.max, peer?.median, peer?.min, peer?.max, ratio].map(cell);
    return [name, ...numbers, pairs.join(' ') || '-', `${(share * 100).toFixed(0)} %`];
  });
  console.log(`\n${table([header, ...rows])}`);
}

function picture(results, options, facts) {
  const bars = ({ tandem, peer, ratio, limit_share: share }) => [
    {
      series: 'Tandem',
      value: tandem.median,
      ...tandem,
      note: `${(share * 100).toFixed(0)} % of limit${ratio ? `, ${ratio}x` : ''}`,
    },
    ...(peer ? [{ series: 'llama.cpp', value: peer.median, ...peer }] : []),
  ];
  return barChart({
    title: `Engine, ${options.shape} shape, ${options.format.toUpperCase()}, ${options.threads} threads`,
    subtitle: `${facts.cpu}, median of ${options.rounds} rounds with spread`,
    unit: 'tok/s, higher is better',
    series: ['Tandem', 'llama.cpp'],
    groups: results.map((result) => ({ name: result.name, bars: bars(result) })),
  });
}

async function main(options) {
  const chosen = cases.filter((one) => caseName(options.format, one).includes(options.only));
  if (chosen.length === 0) {
    const names = cases.map((one) => caseName(options.format, one));
    throw new Error(`--only ${options.only} leaves no case of: ${names.join(', ')}.`);
  }
  const model = ensureRandomModel(options.shape);
  if (!options['no-peer']) ensurePeers();
  if (options.format !== 'bf16') model.gguf = ensureQuantisedGguf(model, options.shape, options.format);
  console.log(
    `Engine benchmark: ${options.shape} shape, ${options.format}, ${options.threads} threads, ${options.rounds} rounds`,
  );
  const facts = machine();
  const engines = await startEngines(options, model);
  try {
    const agreed = engines.peer ? await compareOutputs(engines, model.shape) : null;
    const flash = await warmUp(engines, chosen, model.shape);
    const { runs, limits: measured } = await measure(engines, chosen, options, model.shape, flash);
    await measureReading(engines, runs, options, model.shape, options.format);
    const limits = combineLimits(measured, median);
    const results = runs.map((run) => caseResult(run, model.shape, options.format, limits));
    report(results, runs);
    console.log(`limits in this run: ${JSON.stringify(limits)}`);
    if (!options.json) return;
    const forced = [options.isa, options['peer-backend']].filter(Boolean).join(' ');
    const detail = {
      shape: options.shape,
      threads: options.threads,
      variants: engines.variants,
      ...(forced === '' ? {} : { forced }),
      greedy_agreed: agreed,
    };
    const samples = runs.map(({ one, tandem, peer }) => ({
      name: caseName(options.format, one),
      peer_flash_attention: flash.get(one),
      tandem,
      peer,
    }));
    writeJson(options.json, {
      machine: { ...facts, ...detail },
      limits,
      cases: results,
      samples,
      limits_samples: measured,
    });
    writePicture(pictureBeside(options.json), picture(results, options, facts));
  } finally {
    engines.tandem.close();
    engines.peer?.close();
  }
}

await runCommand(USAGE, parse, main);
