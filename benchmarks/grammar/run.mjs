/**
 * `npm run bench:grammar`: compiling of JSON Schemas and token masks, Tandem and XGrammar in turn on each schema of the JSON Schema
 * Test Suite, with the Qwen tokenizer. Every position of every valid instance is visited twice: masks of a grammar that is new, and
 * of one seen before. Only what both do is compared: schemas that both compile, positions that both reach.
 */
import { parseArgs } from 'node:util';
import path from 'node:path';
import { readTokenizerFiles } from '../../dist/control/models/tokenizer-files.js';
import { PromptEncoder } from '../../dist/control/models/prompt-encoder.js';
import { TokenTable } from '../../dist/control/sessions/token-table.js';
import { runCommand } from '../lib/command.mjs';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { median, quantile, rounded, spread } from '../lib/stats.mjs';
import { suiteCases } from './cases.mjs';
import { Tandem } from './tandem.mjs';
import { XGRAMMAR, XGrammar } from './xgrammar.mjs';

const USAGE = `npm run bench:grammar -- [options]
  --data DIR        folder with suites/ and tokenizers/qwen (default TANDEM_SHARED_DATA or ../shared/data)
  --tokenizer DIR   another tokenizer
  --mode MODE       generate (default, what serving uses) or accept
  --only TEXT       only schemas whose name contains TEXT
  --rounds N        how often everything is measured, each time with new grammars (default 3)
  --no-peer         Tandem alone
  --json FILE       write the results there`;
const END = '<|im_end|>';
const MAX_TOKENS = 2 ** 20;

function parse() {
  const { values } = parseArgs({
    options: {
      data: {
        type: 'string',
        default: process.env.TANDEM_SHARED_DATA ?? path.resolve(import.meta.dirname, '../../../shared/data'),
      },
      tokenizer: { type: 'string' },
      mode: { type: 'string', default: 'generate' },
      only: { type: 'string', default: '' },
      rounds: { type: 'string', default: '3' },
      'no-peer': { type: 'boolean', default: false },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.mode !== 'generate' && values.mode !== 'accept') throw new Error('--mode must be generate or accept.');
  const rounds = Number(values.rounds);
  if (!Number.isInteger(rounds) || rounds < 1) throw new Error('--rounds must be a whole number above zero.');
  return { ...values, rounds, tokenizer: values.tokenizer ?? path.join(values.data, 'tokenizers/qwen') };
}

function newTimes() {
  return { compile: [], first: [], again: [] };
}

/** One schema on one side: compile, then every instance twice. Null where it is refused. */
async function measureSide(side, one, ids) {
  const compiled = await side.compile(one);
  if (!compiled) return null;
  const visits = { compile: compiled.micros, own: compiled.own, first: [], again: [] };
  for (const pass of ['first', 'again']) {
    for (const list of ids) visits[pass].push(await side.visit(compiled, list));
  }
  side.release(compiled);
  return visits;
}

/** Adds the positions that every side reached. */
function addShared(times, results) {
  for (const [name, result] of Object.entries(results)) {
    times[name].compile.push(result.compile);
    if (result.own !== undefined) (times[name].own ??= []).push(result.own);
    for (const pass of ['first', 'again']) {
      for (const [i, micros] of result[pass].entries()) {
        const reached = Math.min(...Object.values(results).map((other) => other[pass][i].length));
        times[name][pass].push(...micros.slice(0, reached));
      }
    }
  }
}

async function measure(sides, cases, encode) {
  const names = Object.keys(sides);
  const times = Object.fromEntries(names.map((name) => [name, newTimes()]));
  const compiled = Object.fromEntries(names.map((name) => [name, 0]));
  let compared = 0;
  for (const one of cases) {
    const ids = one.texts.map(encode);
    const results = {};
    // The side that begins changes from schema to schema.
    for (const name of compared % 2 === 0 ? names : [...names].reverse()) {
      const result = await measureSide(sides[name], one, ids);
      if (result) results[name] = result;
      if (result) compiled[name]++;
    }
    if (Object.keys(results).length < names.length) continue;
    compared++;
    addShared(times, results);
  }
  return { times, compiled, compared };
}

const MEASURED = [
  ['compile', 'compile', 'compile'],
  ['own', 'compile-thread', 'compile, without the way to its thread and back'],
  ['first', 'mask-first', 'mask, first visit'],
  ['again', 'mask-again', 'mask, seen before'],
];

/** One case per quantile, over the rounds: medians with the smallest and largest, the ratio being the median of the rounds' own. */
function casesOf(rounds, mode) {
  const [own, peer] = Object.keys(rounds[0]);
  return MEASURED.flatMap(([key, name, what]) =>
    [50, 99].map((percent) => {
      const of = (side) => rounds.map((times) => quantile(times[side][key], percent / 100));
      const [mine, theirs] = [of(own), peer && rounds[0][peer][key] ? of(peer) : null];
      return {
        name: `grammar/${mode}/${name}/p${percent}`,
        what: `${what} p${percent}`,
        tandem: spread(mine),
        peer: theirs && spread(theirs),
        peer_name: theirs && XGRAMMAR,
        ratio: theirs && rounded(median(mine.map((value, i) => value / theirs[i]))),
        unit: 'us',
      };
    }),
  );
}

function show({ median: middle, min, max }) {
  return `${middle} (${min}-${max})`;
}

function report(cases) {
  const rows = cases.map((one) => [
    one.what,
    show(one.tandem),
    one.peer ? show(one.peer) : '',
    one.ratio === null ? '' : String(one.ratio),
  ]);
  console.log(table([['micros', 'tandem', 'peer', 'ratio'], ...rows]));
}

async function main(options) {
  const cases = suiteCases(options.data).filter((one) => one.name.includes(options.only));
  if (cases.length === 0) throw new Error(`--only ${options.only} leaves no schema.`);
  const files = await readTokenizerFiles(options.tokenizer, MAX_TOKENS);
  const [tokens, encoder] = [new TokenTable(files), new PromptEncoder(files)];
  const end = Math.max(files.vocabulary.indexOf(END), 0);
  const sides = { tandem: await Tandem.create(tokens, end, options.mode) };
  if (!options['no-peer']) sides.xgrammar = await XGrammar.create(files.vocabulary, end);
  const encode = (text) => encoder.encode(text, { addSpecialTokens: false });
  const rounds = [];
  for (let round = 0; round < options.rounds; round++) rounds.push(await measure(sides, cases, encode));
  const [{ times, compiled, compared }] = rounds;
  const counts = Object.entries(compiled).map(([name, count]) => `${name} compiles ${count}`);
  console.log(`${cases.length} schemas, ${tokens.size} tokens, Tandem in ${options.mode} mode: ${counts.join(', ')}`);
  console.log(
    `compared: ${compared} schemas, ${times.tandem.first.length} positions; ratios below 1: Tandem is faster`,
  );
  const results = casesOf(
    rounds.map((round) => round.times),
    options.mode,
  );
  report(results);
  if (!options.json) return;
  const facts = { mode: options.mode, tokens: tokens.size, rounds: options.rounds };
  writeJson(options.json, {
    machine: { ...machine(), ...facts },
    schemas: cases.length,
    compiled,
    compared,
    positions: times.tandem.first.length,
    cases: results.map(({ what: _, ...one }) => one),
  });
}

await runCommand(USAGE, parse, main);
