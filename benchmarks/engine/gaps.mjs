/**
 * `npm run bench:gaps -- FOLDER...`: the share of a decode step's time that passes outside of native code, with steps planned while the one
 * before runs and with steps planned one after the other, in turn on the same engine.
 */
import { parseArgs } from 'node:util';
import { createLocalEngine } from '../../dist/control/engine/local.js';
import { loadNative } from '../../dist/control/engine/native.js';
import { loadModel } from '../../dist/control/models/load.js';
import { runCommand } from '../lib/command.mjs';
import { median } from '../lib/stats.mjs';
import { engineConfig } from '../lib/engine-config.mjs';

const PROMPT = 32;
const USAGE = `npm run bench:gaps -- [options] FOLDER...
  --sequences N   that decode at once (default 32)
  --outputs N     tokens of each (default 160)
  --rounds N      default 5
  --threads N     default 2`;

function parse() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      sequences: { type: 'string', default: '32' },
      outputs: { type: 'string', default: '160' },
      rounds: { type: 'string', default: '5' },
      threads: { type: 'string', default: '2' },
      help: { type: 'boolean', default: false },
    },
  });
  const { help, ...texts } = values;
  const numbers = Object.fromEntries(Object.entries(texts).map(([name, value]) => [name, Number(value)]));
  const wrong = Object.keys(numbers).find((name) => !Number.isInteger(numbers[name]) || numbers[name] < 1);
  if (wrong) throw new Error(`--${wrong} must be a whole number of at least 1.`);
  if (positionals.length === 0 && !help) throw new Error('Give a model directory.');
  return { ...numbers, folders: positionals, help };
}

/** The addon, whose engine can be told to take one step at a time. */
function switchable(addon) {
  const engine = {};
  const createEngine = (model, options) => Object.assign(engine, addon.createEngine(model, options));
  let retract;
  const planAhead = (wanted) => {
    retract ??= engine.retract;
    if (wanted) engine.retract = retract;
    else delete engine.retract;
  };
  return { addon: { ...addon, createEngine }, planAhead };
}

async function open(folder, { threads, sequences, outputs }) {
  const model = await loadModel(folder);
  const { addon, planAhead } = switchable(loadNative());
  const sizes = {
    maxSequences: sequences,
    maxBatchTokens: Math.max(512, sequences),
    maxModelLen: PROMPT + outputs,
  };
  const engine = await createLocalEngine(engineConfig(model, threads, sizes), { addon });
  return { engine, planAhead, vocabulary: model.tokenizerSize };
}

/** One batch from its first to its last step in which all sequences decode. */
function measure({ engine, vocabulary }, { sequences, outputs }, round) {
  const sampling = { temperature: 1, topP: 1, topK: 0, minP: 0, seed: BigInt(round), choice: 0, minTokens: 0 };
  const prompt = (index) =>
    Int32Array.from({ length: PROMPT }, (_, at) => (1 + round * 7919 + index * 131 + at * 17) % vocabulary);
  const requests = Array.from({ length: sequences }, (_, index) => ({
    promptIds: prompt(index),
    sampling: { ...sampling, logprobs: -1, maxTokens: outputs, stopIds: new Int32Array() },
    priority: 0,
    tenant: 'bench',
  }));
  const marks = [];
  const tokens = requests.map(() => 0);
  return new Promise((resolve, reject) => {
    let open = sequences;
    engine.submit(requests, (index, output) => {
      if (output.finish === 'error') reject(new Error(output.error));
      tokens[index] += output.tokens.length;
      const least = Math.min(...tokens);
      // Each sequence has its first tokens, and none its last.
      if (least >= 4 && Math.max(...tokens) < outputs) {
        const { steps, stepMicros } = engine.stats();
        if (marks.at(-1)?.steps !== steps) marks.push({ steps, stepMicros, at: performance.now() });
      }
      if (output.finish && --open === 0) resolve(shares(marks));
    });
  });
}

function shares(marks) {
  const [first, last] = [marks[0], marks.at(-1)];
  const steps = last.steps - first.steps;
  const wall = (1000 * (last.at - first.at)) / steps;
  const native = (last.stepMicros - first.stepMicros) / steps;
  return { wall, outside: wall - native, share: (100 * (wall - native)) / wall };
}

function line(name, rounds) {
  const of = (field) => rounds.map((each) => each[field]);
  const [wall, outside, share] = ['wall', 'outside', 'share'].map((field) => median(of(field)));
  const range = (field, digits) =>
    `${Math.min(...of(field)).toFixed(digits)} to ${Math.max(...of(field)).toFixed(digits)}`;
  const step = `${wall.toFixed(0)} us a step (${range('wall', 0)})`;
  return `  ${name}: ${step}, ${outside.toFixed(0)} us outside of native code, ${share.toFixed(2)} % (${range('share', 2)})`;
}

async function main(options) {
  for (const folder of options.folders) {
    const opened = await open(folder, options);
    const modes = new Map([
      ['one after the other', []],
      ['planned ahead', []],
    ]);
    for (let round = 0; round <= options.rounds; round++) {
      for (const [name, rounds] of modes) {
        opened.planAhead(name === 'planned ahead');
        const measured = await measure(opened, options, 2 * round + Number(name === 'planned ahead'));
        // The first one warms up.
        if (round > 0) rounds.push(measured);
      }
    }
    console.log(`${folder}: ${options.sequences} sequences, ${options.rounds} rounds`);
    for (const [name, rounds] of modes) console.log(line(name, rounds));
    await opened.engine.close();
  }
}

await runCommand(USAGE, parse, main);
