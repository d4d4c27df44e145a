/**
 * `npm run bench:train`: LoRA training steps of Tandem's native trainer beside PyTorch + PEFT, on the same random weights and threads, in turn,
 * each in a process of its own; and a group of completions that share their prompt beside the same rows unshared.
 */
import { parseArgs } from 'node:util';
import path from 'node:path';
import { runCommand } from '../lib/command.mjs';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { median, quantile, rounded, spread } from '../lib/stats.mjs';
import { Worker } from '../lib/worker.mjs';
import { measureLimits } from '../limits/limits.mjs';
import { ensureRandomModel } from '../models/make-random-model.mjs';
import { ALPHA, GROUP, groupRows, modulesOf, plainRow, RANK, ROW } from './cases.mjs';
import { hasPeer, PEER_NAME, TorchPeer } from './torch-peer.mjs';

const USAGE = `npm run bench:train -- [options]
  --shape NAME    qwen3-0.6b (default), qwen3-moe or small
  --rounds N      rounds of A B A B (default 5)
  --threads N     threads of both (default 2)
  --recompute     Tandem computes activations again instead of keeping them
  --python FILE   interpreter of the peer (default python3)
  --peer-dtype T      type of the peer's base weights: bfloat16 (default) or float32, twice the memory
  --peer-adapters T   type of the peer's adapters: float32 or bfloat16; without it both are tried and the faster one is taken
  --no-peer       Tandem alone
  --no-group      leave the shared prompt out
  --json FILE     write the results there`;

function parse() {
  const { values } = parseArgs({
    options: {
      shape: { type: 'string', default: 'qwen3-0.6b' },
      rounds: { type: 'string', default: '5' },
      threads: { type: 'string', default: '2' },
      recompute: { type: 'boolean', default: false },
      python: { type: 'string', default: 'python3' },
      'peer-dtype': { type: 'string', default: 'bfloat16' },
      'peer-adapters': { type: 'string' },
      'no-peer': { type: 'boolean', default: false },
      'no-group': { type: 'boolean', default: false },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  const number = (name) => {
    const value = Number(values[name]);
    if (!Number.isInteger(value) || value < 1) throw new Error(`--${name} must be a whole number of at least 1.`);
    return value;
  };
  return { ...values, rounds: number('rounds'), threads: number('threads') };
}

/** The peer with the adapter type that is faster here. */
async function startPeer(options, model, row) {
  if (options['no-peer']) return null;
  if (!hasPeer(options.python)) {
    console.log(`  ${options.python} lacks torch, transformers or peft: Tandem alone`);
    return null;
  }
  const load = async (adapterDtype) => {
    const peer = new TorchPeer(options.python, options.threads);
    const settings = {
      directory: model.directory,
      threads: options.threads,
      rank: RANK,
      alpha: ALPHA,
      modules: modulesOf(model.shape),
    };
    return { peer, ...(await peer.call('load', { ...settings, dtype: options['peer-dtype'], adapterDtype })) };
  };
  const wanted = options['peer-adapters'] ?? (await fasterAdapters(load, row));
  const { peer, variant } = await load(wanted);
  console.log(`  ${variant}`);
  return { peer, variant };
}

/** The adapter type whose second step takes less time. */
async function fasterAdapters(load, row) {
  const tried = [];
  for (const adapterDtype of ['float32', 'bfloat16']) {
    const { peer } = await load(adapterDtype);
    await peer.call('step', { rows: [row] });
    const { seconds } = await peer.call('step', { rows: [row] });
    tried.push({ adapterDtype, seconds });
    peer.close();
  }
  tried.sort((a, b) => a.seconds - b.seconds);
  console.log(`  the other adapter type takes ${rounded(tried[1].seconds / tried[0].seconds)}x as long`);
  return tried[0].adapterDtype;
}

/** Steps on rows of one length in turn. Both must begin at the same loss. */
async function measureRows(tandem, peer, options, shape) {
  const row = (round) => plainRow(shape.vocab, ROW, 100 + round);
  const warm = [await tandem.call('step', { rows: [row(0)] }), await peer?.call('step', { rows: [row(0)] })];
  if (peer && !(Math.abs(warm[0].loss / warm[1].loss - 1) < 0.02)) {
    throw new Error(`The losses differ (${warm[0].loss}, ${warm[1].loss}): nothing was timed.`);
  }
  const runs = { tandem: [], peer: [], tandemCpu: [], peerCpu: [], slices: [], limits: [] };
  for (let round = 1; round <= options.rounds; round++) {
    runs.limits.push(await measureLimits(options.threads));
    const ours = await tandem.call('step', { rows: [row(round)] });
    runs.tandem.push(ROW / ours.seconds);
    runs.tandemCpu.push(ROW / ours.cpu);
    runs.slices.push(...ours.slices);
    const theirs = await peer?.call('step', { rows: [row(round)] });
    if (theirs) runs.peer.push(ROW / theirs.seconds);
    if (theirs) runs.peerCpu.push(ROW / theirs.cpu);
    const line = [runs.tandem, runs.tandemCpu, runs.peer, runs.peerCpu]
      .map((each) => rounded(each.at(-1)) ?? '-')
      .join(' ');
    console.log(`  round ${round} of ${options.rounds}: tok/s and tok/CPU-s, then the peer's: ${line}`);
  }
  return { ...runs, losses: warm.map((step) => step?.loss) };
}

/** A slice of no length is one unit of work: how long a request that comes may have to wait for training to stop. */
async function measureUnits(tandem, shape) {
  const { slices } = await tandem.call('step', { rows: [plainRow(shape.vocab, ROW, 99)], micros: 0 });
  return slices;
}

const durations = (name, ms) => ({
  name,
  tandem: { ...spread(ms), p90: rounded(quantile(ms, 0.9)), p99: rounded(quantile(ms, 0.99)), count: ms.length },
  unit: 'ms',
});

async function measureGroup(tandem, options, shape) {
  const runs = { shared: [], apart: [] };
  const tokens = GROUP.size * (GROUP.prompt + GROUP.completion);
  for (let round = 0; round < options.rounds; round++) {
    const rows = groupRows(shape.vocab, 500 + 100 * round);
    for (const kind of ['shared', 'apart'])
      runs[kind].push(tokens / (await tandem.call('step', { rows: rows[kind] })).seconds);
  }
  return runs;
}

function beside(name, ours, theirs, peerName, unit) {
  const result = { name, tandem: spread(ours), unit };
  if (theirs.length === 0) return result;
  return {
    ...result,
    peer: spread(theirs),
    peer_name: peerName,
    ratio: rounded(median(ours.map((value, i) => value / theirs[i]))),
  };
}

/** Processes of their own: a peak is that of one row's steps, not of what was measured before. */
async function measureMemory(tandem, peer) {
  const bytes = [await tandem.call('memory'), ...(peer ? [await peer.call('memory')] : [])];
  return bytes.map((value) => rounded(value / 2 ** 20));
}

function report(results) {
  const header = ['case', 'tandem', 'min', 'max', 'p99', 'peer', 'min', 'max', 'ratio', 'unit'];
  const cell = (value) => (value === undefined || value === null ? '-' : String(value));
  const line = ({ name, tandem, peer, ratio, unit }) =>
    [name, tandem.median, tandem.min, tandem.max, tandem.p99, peer?.median, peer?.min, peer?.max, ratio, unit].map(
      cell,
    );
  console.log(`\n${table([header, ...results.map(line)])}`);
}

async function main(options) {
  const model = await ensureRandomModel(options.shape);
  const { shape } = model;
  const chosen = await startPeer(options, model, plainRow(shape.vocab, ROW, 99));
  const peer = chosen?.peer ?? null;
  const tandem = new Worker('Tandem', path.join(import.meta.dirname, 'tandem-worker.mjs'));
  try {
    const settings = {
      directory: model.directory,
      threads: options.threads,
      maxRowTokens: 4096,
      recompute: options.recompute,
    };
    const { variant } = await tandem.call('load', settings);
    console.log(`  ${variant}`);
    const rows = await measureRows(tandem, peer, options, shape);
    const results = [beside(`train/bf16/row${ROW}`, rows.tandem, rows.peer, PEER_NAME, 'tok/s')];
    // What a busy machine disturbs less.
    results.push(beside(`train/bf16/row${ROW}-per-cpu`, rows.tandemCpu, rows.peerCpu, PEER_NAME, 'tok/CPU-s'));
    const memory = await measureMemory(tandem, peer);
    results.push(beside('train/bf16/peak-memory', [memory[0]], memory.slice(1), PEER_NAME, 'MiB'));
    results.push(durations('train/bf16/slice', rows.slices));
    results.push(durations('train/bf16/unit', await measureUnits(tandem, shape)));
    if (!options['no-group']) {
      const group = await measureGroup(tandem, options, shape);
      results.push(beside('train/bf16/shared-prompt', group.shared, group.apart, 'unshared rows', 'tok/s'));
    }
    report(results);
    const facts = {
      machine: await machine(),
      variants: [variant, chosen?.variant],
      losses: rows.losses,
      limits: rows.limits,
    };
    if (options.json) writeJson(options.json, { ...facts, cases: results });
  } finally {
    tandem.close();
    peer?.close();
  }
}

await runCommand(USAGE, parse, main);
