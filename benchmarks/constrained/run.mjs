/**
 * `npm run bench:constrained`: decoding of many streams held to a JSON Schema against the same streams free, in turn, in one engine.
 * Sampling at temperature 1, the same prompts and limits; a rate counts the tokens while all streams run.
 *
 * With `--jump-forward` both sides are held to a schema of long property names: one samples what the grammar forces, the other jumps.
 */
import { copyFileSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { createLocalEngine } from '../../dist/control/engine/local.js';
import { SERVE } from '../../dist/control/grammar/compile.js';
import { loadModel } from '../../dist/control/models/load.js';
import { readTokenizerFiles } from '../../dist/control/models/tokenizer-files.js';
import { grammarVocabulary, readModelTokenizer } from '../../dist/control/sessions/model-tokenizer.js';
import { TokenTable } from '../../dist/control/sessions/token-table.js';
import { runCommand } from '../lib/command.mjs';
import { engineConfig } from '../lib/engine-config.mjs';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { median, rounded, spread } from '../lib/stats.mjs';
import { ensureRandomModel } from '../models/make-random-model.mjs';

const USAGE = `npm run bench:constrained -- [options]
  --shape NAME     qwen3-0.6b (default) or small
  --streams N      streams that run at once (default 32)
  --tokens N       tokens of each at most (default 96)
  --rounds N       rounds of free, constrained (default 5)
  --threads N      engine threads (default 2)
  --jump-forward   compare jumping over forced text with sampling it
  --tokenizer DIR  a real tokenizer.json for the grammar's vocabulary instead of the random model's own
  --json FILE      write the results there`;

/** Text, numbers and choices; long enough not to end before the limit, and steered towards its end there. */
const SCHEMA = {
  type: 'array',
  minItems: 3,
  items: {
    type: 'object',
    properties: {
      id: { type: 'integer' },
      name: { type: 'string' },
      kind: { enum: ['a', 'b'] },
      score: { type: 'number' },
    },
    required: ['name', 'kind'],
    additionalProperties: false,
  },
};

/** Most of its text is forced once a name has begun. */
const LONG_NAMES = {
  type: 'object',
  properties: Object.fromEntries(
    ['customer_identification', 'shipping_address_country', 'preferred_payment_method', 'newsletter_subscription'].map(
      (name, index) => [
        name,
        index % 2 === 0 ? { type: 'boolean' } : { enum: ['confirmed_by_customer', 'unknown_at_present'] },
      ],
    ),
  ),
  additionalProperties: false,
};
LONG_NAMES.required = Object.keys(LONG_NAMES.properties);

function parse() {
  const text = (value) => ({ type: 'string', default: value });
  const { values } = parseArgs({
    options: {
      shape: text('qwen3-0.6b'),
      streams: text('32'),
      tokens: text('96'),
      rounds: text('5'),
      threads: text('2'),
      tokenizer: { type: 'string' },
      'jump-forward': { type: 'boolean', default: false },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  const number = (name) => {
    const value = Number(values[name]);
    if (!Number.isInteger(value) || value < 1) throw new Error(`--${name} must be a whole number of at least 1.`);
    return value;
  };
  const [streams, tokens, rounds, threads] = ['streams', 'tokens', 'rounds', 'threads'].map(number);
  return { ...values, streams, tokens, rounds, threads };
}

async function vocabularyOf(directory, tokenizer, vocabSize) {
  const own = await readModelTokenizer(directory);
  if (!tokenizer) return { vocabulary: grammarVocabulary(own), size: own.table.size };
  const tokens = new TokenTable(await readTokenizerFiles(tokenizer, vocabSize));
  return { vocabulary: grammarVocabulary({ ...own, table: tokens }), size: tokens.size };
}

/** A model's texts with another tokenizer's: what the engine reads to spell forced text. */
function spellerModel(directory, tokenizer) {
  if (!tokenizer) return directory;
  const texts = mkdtempSync(path.join(tmpdir(), 'tandem-speller-'));
  for (const name of ['config.json', 'generation_config.json'])
    copyFileSync(path.join(directory, name), path.join(texts, name));
  copyFileSync(path.join(tokenizer, 'tokenizer.json'), path.join(texts, 'tokenizer.json'));
  return texts;
}

async function start(options) {
  const { directory } = ensureRandomModel(options.shape);
  const model = await loadModel(directory);
  const { vocabulary, size } = await vocabularyOf(directory, options.tokenizer, model.spec.vocabSize);
  const speller = spellerModel(directory, options.tokenizer);
  const sizes = { maxSequences: options.streams, maxBatchTokens: 2048, maxModelLen: 1024 };
  const config = {
    ...engineConfig(model, options.threads, sizes),
    samplableVocab: Math.min(size, model.tokenizerSize),
    kvCacheBytes: 2 ** 31,
    enablePrefixCaching: false,
    vocabulary,
    spellerModel: speller,
  };
  const engine = await createLocalEngine(config);
  if (options.tokenizer) rmSync(speller, { recursive: true });
  return { engine, ends: model.generation.eosTokenIds };
}

/** Tokens per second while all streams run. */
async function run(engine, { streams, tokens }, seed, grammar, ends, jumpForward = false) {
  const times = Array.from({ length: streams }, () => []);
  const sampling = {
    temperature: 1,
    topP: 1,
    topK: 0,
    minP: 0,
    minTokens: 0,
    logprobs: -1,
    maxTokens: tokens,
    choice: 0,
  };
  // Free streams end at the limit only, as the constrained ones nearly all do.
  const stopIds = grammar ? Int32Array.from(ends) : new Int32Array(0);
  await new Promise((resolve, reject) => {
    let open = streams;
    const requests = times.map((_, index) => ({
      promptIds: Int32Array.from({ length: 16 }, (__, i) => 65 + ((i * 7 + index) % 26)),
      sampling: { ...sampling, stopIds, seed: BigInt(seed * 1000 + index) },
      priority: 0,
      tenant: 'bench',
      ...(grammar && { grammar, jumpForward }),
    }));
    engine.submit(requests, (index, output) => {
      for (const _ of output.tokens) times[index].push(performance.now());
      if (output.finish === 'error') reject(new Error(output.error));
      else if (output.finish && --open === 0) resolve();
    });
  });
  const begin = Math.max(...times.map((one) => one[0]));
  const end = Math.min(...times.map((one) => one.at(-1)));
  const count = times.flat().filter((time) => time > begin && time <= end).length;
  return count / ((end - begin) / 1000);
}

/** The two sides, by name: what each runs under. */
async function sidesOf(engine, options) {
  const jumps = options['jump-forward'];
  const text = JSON.stringify(jumps ? { type: 'array', minItems: 8, items: LONG_NAMES } : SCHEMA);
  const grammar = { source: { kind: 'json_schema', text }, options: { ...SERVE, seconds: 60 } };
  const failure = await engine.compileGrammar('bench', grammar);
  if (failure) throw new Error(failure.message);
  if (jumps) return { sampled: [grammar, false], jumped: [grammar, true] };
  return { free: [null, false], constrained: [grammar, false] };
}

async function main(options) {
  const { engine, ends } = await start(options);
  const sides = Object.entries(await sidesOf(engine, options));
  const measure = (seed, [grammar, jumps]) => run(engine, options, seed, grammar, ends, jumps);
  for (const [, side] of sides) await measure(0, side);
  const rounds = [];
  for (let round = 1; round <= options.rounds; round++) {
    const rates = {};
    for (const [name, side] of sides) rates[name] = await measure(round, side);
    const [base, other] = Object.values(rates);
    rounds.push({ ...rates, ratio: other / base });
    const told = Object.entries(rates).map(([name, rate]) => `${name} ${rate.toFixed(1)}`);
    console.error(`round ${round}: ${told.join(', ')} tokens/s`);
  }
  await engine.close();
  const of = (key) => rounds.map((round) => round[key]);
  const names = sides.map(([name]) => name);
  const rows = names.map((key) => [key, ...Object.values(spread(of(key))).map(String)]);
  console.log(table([['tokens/s', 'median', 'min', 'max'], ...rows]));
  const ratio = rounded(median(of('ratio')));
  console.log(
    `${names[1]} / ${names[0]}: ${ratio} (median of ${options.rounds} rounds; ${JSON.stringify(spread(of('ratio')))})`,
  );
  if (!options.json) return;
  const { streams, tokens, shape, threads } = options;
  const one = {
    name: `${names[1]}/${streams}`,
    tandem: spread(of(names[1])),
    beside: spread(of(names[0])),
    beside_name: names[0],
    ratio,
    samples: rounds,
    unit: 'tok/s',
  };
  writeJson(options.json, { machine: { ...machine(), shape, tokens, threads }, limits: {}, cases: [one] });
}

await runCommand(USAGE, parse, main);
