/**
 * `npm run bench:sampling`: what token controls add to a step, per sequence, over a vocabulary of 151,936 on one thread. The model
 * under it is next to nothing; each control runs in turn with the plain draw, in the same process.
 */
import { parseArgs } from 'node:util';
import { loadNative, PAGE_SIZE } from '../../dist/control/engine/native.js';
import { loadModel } from '../../dist/control/models/load.js';
import { runCommand } from '../lib/command.mjs';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { median, randomFrom, rounded, spread } from '../lib/stats.mjs';
import { ensureRandomModel } from '../models/make-random-model.mjs';

const USAGE = `npm run bench:sampling -- [options]
  --rounds N     of all cases in turn (default 5)
  --steps N      per case and round (default 20)
  --sequences N  in the batch (default 16)
  --start DIR    a model directory instead of the random one
  --json FILE    write the results there`;

const OPTIONS = {
  rounds: { type: 'string', default: '5' },
  steps: { type: 'string', default: '20' },
  sequences: { type: 'string', default: '16' },
  start: { type: 'string' },
  json: { type: 'string' },
  help: { type: 'boolean', default: false },
};

/** Added milliseconds per sequence and step that are wanted at most. */
const WANTED_MS = 0.3;
const PROMPT = 256;
/** Spreads the random logits as far as those of a trained model at 1: flatter rows make the filters keep nearly everything. */
const TEMPERATURE = 0.25;

const ids = (count, random, below) => {
  const set = new Set();
  while (set.size < count) set.add(Math.floor(random() * below));
  return Int32Array.from(set).sort();
};

/** Every control, each with the size of a demanding request. */
function controls(vocab) {
  const random = randomFrom(7);
  const penalties = { frequencyPenalty: 0.5, presencePenalty: 0.5, repetitionPenalty: 1.1 };
  const bias = {
    biasIds: ids(300, random, vocab),
    biasValues: Float32Array.from({ length: 300 }, () => random() * 4 - 2),
  };
  const badWords = { badWords: Array.from({ length: 100 }, () => ids(2, random, vocab)) };
  const allowed = { allowedIds: ids(Math.floor(vocab / 2), random, vocab) };
  const minTokens = { minTokens: 1000, stopIds: ids(16, random, vocab) };
  const filters = { topK: 50, topP: 0.9, minP: 0.02 };
  const logprobs = { logprobs: 20 };
  const all = { ...penalties, ...bias, ...badWords, ...allowed, ...minTokens };
  return {
    'plain draw': {},
    penalties,
    'logit_bias, 300': bias,
    'bad_words, 100': badWords,
    'allowed_token_ids, half': allowed,
    'min_tokens, 16 stops': minTokens,
    'top_k, top_p, min_p': filters,
    'top_logprobs 20': logprobs,
    'all controls': all,
    'all, filters and logprobs': { ...all, ...filters, ...logprobs },
  };
}

/** Microseconds of the least disturbed decode step of a fresh batch. */
async function measure(engine, sampling, { sequences, steps }, vocab) {
  const random = randomFrom(3);
  const base = {
    temperature: 1,
    topP: 1,
    topK: 0,
    minP: 0,
    seed: 1n,
    choice: 0,
    maxTokens: 2000,
    minTokens: 0,
    logprobs: -1,
  };
  const slots = Array.from({ length: sequences }, (_, slot) => slot);
  const spec = { ...base, stopIds: new Int32Array(0), ...sampling };
  const perSlot = Math.ceil((PROMPT + steps) / PAGE_SIZE);
  const first = {
    opens: slots.map((slot) => ({ slot, promptLength: PROMPT, sampling: { ...spec, choice: slot } })),
    closes: new Int32Array(0),
    pages: Int32Array.from(
      slots.flatMap((slot) => Array.from({ length: perSlot }, (_, i) => [slot, i, slot * perSlot + i])).flat(),
    ),
    rows: Int32Array.from(slots.flatMap((slot) => [slot, 0, PROMPT, 1])),
    tokens: Int32Array.from({ length: PROMPT * sequences }, () => Math.floor(random() * vocab)),
  };
  await engine.step(first);
  const nothing = { opens: [], closes: new Int32Array(0), pages: new Int32Array(0) };
  const times = [];
  for (let step = 0; step < steps - 1; step++) {
    const rows = Int32Array.from(slots.flatMap((slot) => [slot, PROMPT + step, 1, 1]));
    const { micros } = await engine.step({ ...nothing, rows, tokens: new Int32Array(sequences).fill(-1) });
    times.push(micros);
  }
  await engine.step({ ...nothing, closes: Int32Array.from(slots), rows: new Int32Array(0), tokens: new Int32Array(0) });
  return Math.min(...times);
}

function parse() {
  const { values } = parseArgs({ options: OPTIONS });
  const number = (name) => {
    const value = Number(values[name]);
    if (!Number.isInteger(value) || value < 1) throw new Error(`--${name} must be a whole number of at least 1.`);
    return value;
  };
  return { ...values, rounds: number('rounds'), steps: number('steps'), sequences: number('sequences') };
}

async function main({ rounds, steps, sequences, start, json }) {
  const files = await loadModel(start ?? ensureRandomModel('wide').directory);
  const addon = loadNative();
  const vocab = files.spec.vocabSize;
  const model = await addon.loadModel(files.spec, files.files, files.tensors, { dtype: 'bfloat16', threads: 1 });
  const pages = sequences * Math.ceil((PROMPT + steps) / PAGE_SIZE);
  const sizes = { maxSequences: sequences, maxBatchTokens: PROMPT * sequences, pages, maxModelLen: 4096 };
  const engine = addon.createEngine(model, { ...sizes, samplableVocab: vocab, maxLogprobs: 20 });
  const cases = controls(vocab);
  const samples = Object.fromEntries(Object.keys(cases).map((name) => [name, []]));
  for (let round = 0; round < rounds; round++) {
    for (const [name, sampling] of Object.entries(cases))
      samples[name].push(await measure(engine, sampling, { sequences, steps }, vocab));
  }
  engine.close();
  model.close();
  report(samples, { sequences, vocab }, json);
}

function report(samples, { sequences, vocab }, json) {
  const plain = samples['plain draw'];
  const results = Object.entries(samples).map(([name, micros]) => {
    const added = micros.map((value, round) => (value - plain[round]) / sequences / 1000);
    return { name, step: spread(micros.map((value) => value / 1000)), added: spread(added) };
  });
  const rows = results.map(({ name, step, added }) => [
    name,
    `${step.median}`,
    `${added.median}`,
    `${added.min} to ${added.max}`,
  ]);
  console.log(table([['vocabulary of ' + vocab, 'step, ms', 'added per sequence, ms', 'spread'], ...rows]));
  const all = results.find(({ name }) => name === 'all controls').added.median;
  console.log(`All controls add ${all} ms per sequence and step; wanted: less than ${WANTED_MS}.`);
  if (!json) return;
  const caseOf = ({ name, step, added }) => ({
    name: `sampling/${name}`,
    tandem: step,
    added_per_sequence: added,
    unit: 'ms of a step',
  });
  writeJson(json, { machine: { ...machine(), sequences, vocab }, limits: {}, cases: results.map(caseOf) });
}

await runCommand(USAGE, parse, main);
