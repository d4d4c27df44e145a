/** `npm run bench:gaps -- FOLDER...`: the share of a decode step's time that passes outside of native code. */
import { parseArgs } from 'node:util';
import { createLocalEngine } from '../../dist/control/engine/local.js';
import { loadModel } from '../../dist/control/models/load.js';
import { median } from '../lib/stats.mjs';

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
    },
  });
  const numbers = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, Number(value)]));
  const wrong = Object.keys(numbers).find((name) => !Number.isInteger(numbers[name]) || numbers[name] < 1);
  if (wrong) throw new Error(`--${wrong} must be a whole number of at least 1.`);
  if (positionals.length === 0) throw new Error(USAGE);
  return { ...numbers, folders: positionals };
}

async function open(folder, { threads, sequences, outputs }) {
  const model = await loadModel(folder);
  const engine = await createLocalEngine({
    spec: model.spec,
    files: model.files,
    tensors: model.tensors,
    dtype: 'bfloat16',
    threads,
    maxSequences: sequences,
    maxBatchTokens: Math.max(512, sequences),
    maxModelLen: PROMPT + outputs,
    samplableVocab: model.tokenizerSize,
    maxLogprobs: 0,
    kvCacheBytes: 1 << 30,
    enableChunkedPrefill: true,
    faults: [],
  });
  return { engine, vocabulary: model.tokenizerSize };
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

const options = parse();
for (const folder of options.folders) {
  const opened = await open(folder, options);
  await measure(opened, options, 0);
  const rounds = [];
  for (let round = 1; round <= options.rounds; round++) rounds.push(await measure(opened, options, round));
  const of = (name) => rounds.map((each) => each[name]);
  const [wall, outside, share] = ['wall', 'outside', 'share'].map((name) => median(of(name)));
  console.log(
    `${folder}: ${options.sequences} sequences, ${wall.toFixed(0)} us a step, ${outside.toFixed(0)} us of it outside of native code: ` +
      `${share.toFixed(2)} % (${options.rounds} rounds, ${Math.min(...of('share')).toFixed(2)} to ${Math.max(...of('share')).toFixed(2)} %)`,
  );
  await opened.engine.close();
}
