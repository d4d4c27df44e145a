/** The checks of form: each a name and a command, which change nothing; used by `npm run lint` and by `npm test`. */
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { fromRoot } from './paths.mjs';
import { outputOf } from './step.mjs';
import { tscCommand } from './typescript.mjs';

const NATIVE_SOURCE = /\.(cc|cpp|h|hpp|cu|cuh)$/;

export function bin(name) {
  return fromRoot('node_modules', '.bin', name);
}

/** What is installed or built there is not ours. */
const FOREIGN = /(^|\/)(node_modules|llama\.cpp|build)(\/|$)/;

export function nativeSources() {
  return ['native', 'test/native', 'benchmarks'].flatMap((folder) =>
    existsSync(fromRoot(folder))
      ? readdirSync(fromRoot(folder), { recursive: true })
          .filter((file) => NATIVE_SOURCE.test(file) && !FOREIGN.test(file))
          .map((file) => path.join(folder, file))
      : [],
  );
}

/** Versions differ in what they call formatted: only this one is asked. */
const CLANG_FORMAT_VERSION = 14;

export function hasClangFormat() {
  const { stdout } = spawnSync('clang-format', ['--version'], { encoding: 'utf8' });
  return new RegExp(`version ${CLANG_FORMAT_VERSION}\\.`).test(stdout ?? '');
}

function checks() {
  const list = [
    { name: 'format (prettier)', command: bin('prettier'), args: ['--check', '--log-level', 'warn', '.'] },
    { name: 'types of src', command: tscCommand()[0], args: [...tscCommand()[1], '--noEmit', '-p', 'tsconfig.json'] },
    {
      name: 'types of test and benchmarks',
      command: tscCommand()[0],
      args: [...tscCommand()[1], '--noEmit', '-p', 'tsconfig.test.json'],
    },
    {
      name: 'mutations apply',
      command: process.execPath,
      args: [fromRoot('scripts', 'mutations', 'run.mjs'), '--check'],
    },
  ];
  const sources = nativeSources();
  const format = { name: 'format (clang-format)', command: 'clang-format', args: ['--dry-run', '-Werror', ...sources] };
  if (sources.length > 0)
    list.push(
      hasClangFormat() ? format : { ...format, skipped: `clang-format ${CLANG_FORMAT_VERSION} is not installed` },
    );
  return list;
}

/** Runs the checks, two at a time, with the output of those that fail: how many passed, failed and were skipped. */
export async function runChecks() {
  const counts = { passed: 0, failed: 0, skipped: 0 };
  const waiting = checks();
  const runWaiting = async () => {
    for (let check = waiting.shift(); check; check = waiting.shift()) counts[await runCheck(check)]++;
  };
  await Promise.all([runWaiting(), runWaiting()]);
  return counts;
}

async function runCheck({ name, command, args, skipped }) {
  if (skipped) {
    console.log(`  skipped  ${name}: ${skipped}`);
    return 'skipped';
  }
  const { output, code } = await outputOf(command, args);
  const outcome = code === 0 ? 'passed' : 'failed';
  console.log(`  ${outcome}  ${name}`);
  if (outcome === 'failed') console.log(output);
  return outcome;
}
