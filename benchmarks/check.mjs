/**
 * `npm run bench:check -- FILE...`: results of the other benchmarks (their --json files) against the committed baselines of the same
 * machine. Ends with 1 when a case has become worse by more than the tolerance.
 */
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { runCommand } from './lib/command.mjs';
import { compareCases, sameMachine } from './lib/compare.mjs';
import { table } from './lib/output.mjs';

const BASELINES = path.join(import.meta.dirname, 'baselines');

const USAGE = `npm run bench:check -- [options] FILE...
  --baselines DIR   folder with one folder of results per machine (default benchmarks/baselines)
  --tolerance T     share that a case may lose (default 0.1)`;

function readJson(file) {
  return JSON.parse(readFileSync(file, 'utf8'));
}

function baselinesFor(folder, result) {
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.json'));
  return files
    .map((file) => readJson(path.join(folder, file)))
    .filter(({ machine }) => sameMachine(machine, result.machine));
}

function check(file, { baselines, tolerance }) {
  const result = readJson(file);
  if (!Array.isArray(result.cases))
    throw new Error(`${file}: these are no results of a benchmark: there are no cases.`);
  const known = baselinesFor(baselines, result);
  if (known.length === 0)
    throw new Error(
      `${file}: there is no baseline of this machine and shape (${result.machine.gpu ?? result.machine.cpu}).`,
    );
  const compared = known.flatMap((baseline) => compareCases(result, baseline, tolerance));
  if (compared.length === 0) throw new Error(`${file}: no baseline of this machine has one of its cases.`);
  const cell = (value) => (value === undefined ? '-' : value.toFixed(2));
  const rows = compared.map(({ name, verdict, gains }) => [
    name,
    verdict,
    cell(gains.median),
    cell(gains.limit_share),
    cell(gains.ratio),
  ]);
  console.log(`${file}\n${table([['case', 'verdict', 'median', 'of limit', 'ratio'], ...rows])}`);
  return compared.filter(({ verdict }) => verdict === 'worse').length;
}

function parse() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      baselines: { type: 'string', default: BASELINES },
      tolerance: { type: 'string', default: '0.1' },
      help: { type: 'boolean', default: false },
    },
  });
  const tolerance = Number(values.tolerance);
  if (!(tolerance > 0 && tolerance < 1)) throw new Error('--tolerance must be between 0 and 1.');
  if (positionals.length === 0 && !values.help) throw new Error('Give a file of results.');
  return { ...values, tolerance, files: positionals };
}

function main({ files, baselines, tolerance }) {
  let worse = 0;
  try {
    for (const file of files) worse += check(file, { baselines, tolerance });
  } catch (error) {
    // 1 is for what has become worse.
    console.error(error.message);
    process.exitCode = 2;
    return;
  }
  if (worse > 0) throw new Error(`${worse} cases have become worse.`);
}

await runCommand(USAGE, parse, main);
