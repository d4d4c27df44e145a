/**
 * `npm run bench:adapters`: what adapters cost. A batch of streams decodes on the base model, then with adapters of ranks
 * 8, 8, 8, 8, 16, 16, 32, 64 on all seven projections, its streams spread over them; in turn, in one process.
 */
import { closeSync, mkdirSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { runCommand } from '../lib/command.mjs';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { median, rounded, spread } from '../lib/stats.mjs';
import { Worker } from '../lib/worker.mjs';
import { measureLimits } from '../limits/limits.mjs';
import { ensureRandomModel } from '../models/make-random-model.mjs';
import { beginSafetensors } from '../models/safetensors.mjs';
import { elements } from '../models/shapes.mjs';
import { modulesOf } from '../train/cases.mjs';
import { weightPieces } from '../models/weights.mjs';
import { promptsOf } from './cases.mjs';
import { combineLimits } from './shares.mjs';

const USAGE = `npm run bench:adapters -- [options]
  --shape NAME     qwen3-0.6b (default), qwen3-moe or small
  --rounds N       rounds of base, adapters, base, adapters ... (default 5)
  --streams N      streams of the batch (default 32)
  --threads N      threads of the engine (default 2)
  --ranks LIST     ranks of the adapters (default 8,8,8,8,16,16,32,64)
  --json FILE      write the results there`;

const ATTENTION = ['q', 'k', 'v', 'o'];

function parse() {
  const { values } = parseArgs({
    options: {
      shape: { type: 'string', default: 'qwen3-0.6b' },
      rounds: { type: 'string', default: '5' },
      streams: { type: 'string', default: '32' },
      threads: { type: 'string', default: '2' },
      ranks: { type: 'string', default: '8,8,8,8,16,16,32,64' },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  const whole = (name, text) => {
    const value = Number(text);
    if (!Number.isInteger(value) || value < 1) throw new Error(`--${name} must hold whole numbers of at least 1.`);
    return value;
  };
  return {
    ...values,
    rounds: whole('rounds', values.rounds),
    streams: whole('streams', values.streams),
    threads: whole('threads', values.threads),
    ranks: values.ranks.split(',').map((rank) => whole('ranks', rank)),
  };
}

/** Inputs and outputs of a projection. */
function sizesOf(shape, module) {
  const [queries, keys] = [shape.heads * shape.headDim, shape.kvHeads * shape.headDim];
  if (module === 'q') return [shape.hidden, queries];
  if (module === 'k' || module === 'v') return [shape.hidden, keys];
  if (module === 'o') return [queries, shape.hidden];
  return module === 'down' ? [shape.ffn, shape.hidden] : [shape.hidden, shape.ffn];
}

function adapterTensors(shape, rank) {
  const tensors = [];
  for (let layer = 0; layer < shape.layers; layer++) {
    for (const module of modulesOf(shape)) {
      const [inputs, outputs] = sizesOf(shape, module);
      const block = ATTENTION.includes(module) ? 'self_attn' : 'mlp';
      const name = `base_model.model.model.layers.${layer}.${block}.${module}_proj`;
      tensors.push({ name: `${name}.lora_A.weight`, shape: [rank, inputs], deviation: 1 / Math.sqrt(inputs) });
      tensors.push({ name: `${name}.lora_B.weight`, shape: [outputs, rank], deviation: 0.2 });
    }
  }
  return tensors;
}

function writeAdapter(folder, shape, rank, seed) {
  mkdirSync(folder, { recursive: true });
  const targets = modulesOf(shape).map((module) => `${module}_proj`);
  const config = { peft_type: 'LORA', r: rank, lora_alpha: 2 * rank, target_modules: targets };
  writeFileSync(path.join(folder, 'adapter_config.json'), JSON.stringify(config));
  const file = openSync(path.join(folder, 'adapter_model.safetensors'), 'w');
  const tensors = adapterTensors(shape, rank);
  beginSafetensors(file, tensors).forEach((offset, index) => {
    let at = offset;
    for (const piece of weightPieces(tensors[index], elements(tensors[index]), seed * 10_007 + index)) {
      at += writeSync(file, piece, 0, piece.byteLength, at);
    }
  });
  closeSync(file);
}

/** Base and adapters in turn, so that both meet the same machine; one round more to warm up. */
async function measure(worker, options, shape) {
  const runs = { base: [], adapters: [] };
  const limits = [];
  for (let round = 0; round <= options.rounds; round++) {
    if (round > 0) limits.push(await measureLimits(options.threads));
    for (const kind of ['base', 'adapters']) {
      const prompts = promptsOf(shape, { kind: 'decode', n: options.streams }, 2 * round + (kind === 'base' ? 0 : 1));
      const rate = await worker.call('decode', { prompts, adapters: kind === 'adapters' });
      if (round > 0) runs[kind].push(rate);
    }
  }
  return { runs, limits: combineLimits(limits, median) };
}

function report(options, { runs, limits }) {
  const ratios = runs.adapters.map((rate, index) => rate / runs.base[index]);
  const [base, adapters] = [spread(runs.base), spread(runs.adapters)];
  const row = (name, { median: middle, min, max }) => [name, String(middle), String(min), String(max)];
  const header = ['tok/s', 'median', 'min', 'max'];
  console.log(table([header, row('base', base), row('adapters', adapters), row('ratio', spread(ratios))]));
  if (options.json === undefined) return;
  const name = `engine/bf16/adapters/${options.streams}`;
  const one = { name, tandem: adapters, peer: base, peer_name: 'the base model', unit: 'tok/s', ranks: options.ranks };
  writeJson(options.json, { machine: machine(), limits, cases: [{ ...one, ratio: rounded(median(ratios)) }] });
}

async function main(options) {
  const model = ensureRandomModel(options.shape);
  const folder = path.join(path.dirname(model.directory), `adapters-${process.pid}`);
  const folders = options.ranks.map((_, index) => path.join(folder, String(index)));
  const worker = new Worker('Tandem', path.join(import.meta.dirname, 'tandem-worker.mjs'));
  try {
    folders.forEach((each, index) => writeAdapter(each, model.shape, options.ranks[index], index + 1));
    const size = { maxBatchTokens: 2048, maxModelLen: 4096, sequences: options.streams };
    const { variant } = await worker.call('load', { directory: model.directory, threads: options.threads, ...size });
    const { changed } = await worker.call('adapters', {
      folders,
      prompts: promptsOf(model.shape, { kind: 'decode', n: 1 }, 0),
    });
    console.log(`  ${variant}; adapters of ranks ${options.ranks.join(', ')} change the output: ${changed}`);
    if (!changed) throw new Error('The adapters change nothing: nothing was timed.');
    report(options, await measure(worker, options, model.shape));
  } finally {
    worker.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

await runCommand(USAGE, parse, main);
