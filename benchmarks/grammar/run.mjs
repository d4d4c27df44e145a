/**
 * `npm run bench:grammar`: compiling of JSON Schemas and token masks, Tandem and XGrammar in turn on each schema of the JSON Schema
 * Test Suite, with the Qwen tokenizer. Every position of every valid instance is visited twice: masks of a grammar that is new, and
 * of one seen before. Only what both do is compared: schemas that both compile, positions that both reach.
 */
import { parseArgs } from 'node:util';
import path from 'node:path';
import { readTokenizerFiles } from '../../dist/control/models/tokenizer-files.js';
import { PromptEncoder } from '../../dist/control/sessions/prompt-encoder.js';
import { TokenTable } from '../../dist/control/sessions/token-table.js';
import { machine } from '../lib/machine.mjs';
import { table, writeJson } from '../lib/output.mjs';
import { quantile, rounded } from '../lib/stats.mjs';
import { suiteCases } from './cases.mjs';
import { Tandem } from './tandem.mjs';
import { XGRAMMAR, XGrammar } from './xgrammar.mjs';

const USAGE = `npm run bench:grammar -- [options]
  --data DIR        folder with suites/ and tokenizers/qwen (default TANDEM_SHARED_DATA or ../shared/data)
  --tokenizer DIR   another tokenizer
  --mode MODE       generate (default, what serving uses) or accept
  --only TEXT       only schemas whose name contains TEXT
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
      'no-peer': { type: 'boolean', default: false },
      json: { type: 'string' },
      help: { type: 'boolean', default: false },
    },
  });
  if (values.mode !== 'generate' && values.mode !== 'accept') throw new Error('--mode must be generate or accept.');
  return { ...values, tokenizer: values.tokenizer ?? path.join(values.data, 'tokenizers/qwen') };
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

function summary(list) {
  return {
    count: list.length,
    p50: rounded(quantile(list, 0.5)),
    p99: rounded(quantile(list, 0.99)),
    max: rounded(quantile(list, 1)),
  };
}

function report(times) {
  const [own, peer] = Object.keys(times);
  const rows = [['micros', own, ...(peer ? [peer, 'ratio'] : [])]];
  const results = [];
  for (const [what, key] of [
    ['compile', 'compile'],
    ['mask, first visit', 'first'],
    ['mask, seen before', 'again'],
  ]) {
    const mine = summary(times[own][key]);
    const theirs = peer ? summary(times[peer][key]) : null;
    for (const part of ['p50', 'p99']) {
      const ratio = theirs ? rounded(mine[part] / theirs[part]) : null;
      rows.push([`${what} ${part}`, String(mine[part]), ...(theirs ? [String(theirs[part]), String(ratio)] : [])]);
      results.push({ name: `${what} ${part}`, tandem: mine[part], peer: theirs?.[part] ?? null, ratio, unit: 'us' });
    }
  }
  console.log(table(rows));
  return results;
}

async function main() {
  const options = parse();
  if (options.help) return console.log(USAGE);
  const cases = suiteCases(options.data).filter((one) => one.name.includes(options.only));
  if (cases.length === 0) throw new Error(`--only ${options.only} leaves no schema.`);
  const files = await readTokenizerFiles(options.tokenizer, MAX_TOKENS);
  const [tokens, encoder] = [new TokenTable(files), new PromptEncoder(files)];
  const end = Math.max(files.vocabulary.indexOf(END), 0);
  const sides = { tandem: await Tandem.create(tokens, end, options.mode) };
  if (!options['no-peer']) sides.xgrammar = await XGrammar.create(files.vocabulary, end);
  const encode = (text) => encoder.encode(text, { addSpecialTokens: false });
  const { times, compiled, compared } = await measure(sides, cases, encode);
  const counts = Object.entries(compiled).map(([name, count]) => `${name} compiles ${count}`);
  console.log(`${cases.length} schemas, ${tokens.size} tokens, Tandem in ${options.mode} mode: ${counts.join(', ')}`);
  console.log(
    `compared: ${compared} schemas, ${times.tandem.first.length} positions; ratios below 1: Tandem is faster`,
  );
  const results = report(times);
  console.log(`Tandem's compilations without the way to their thread and back: p50 ${summary(times.tandem.own).p50}`);
  if (!options.json) return;
  const facts = { mode: options.mode, tokens: tokens.size, peer: options['no-peer'] ? null : XGRAMMAR };
  const all = Object.fromEntries(
    Object.entries(times).map(([name, own]) => [
      name,
      Object.fromEntries(Object.entries(own).map(([key, list]) => [key, summary(list)])),
    ]),
  );
  writeJson(options.json, {
    machine: { ...machine(), ...facts },
    schemas: cases.length,
    compiled,
    compared,
    cases: results,
    all,
  });
}

try {
  await main();
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
