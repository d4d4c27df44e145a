/** The checks of form: each a name and a command; used by `npm run lint` and by `npm test`. */
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { fromRoot, root } from './paths.mjs';
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

export function checks() {
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

/** Runs one check with its output shown only when it fails: 'passed', 'failed' or 'skipped'. */
export function runCheck({ name, command, args, skipped }) {
  if (skipped) {
    console.log(`  skipped  ${name}: ${skipped}`);
    return 'skipped';
  }
  const result = spawnSync(command, args, { cwd: root, encoding: 'utf8', maxBuffer: 64 << 20 });
  const outcome = result.status === 0 ? 'passed' : 'failed';
  console.log(`  ${outcome}  ${name}`);
  if (outcome === 'failed') console.log(`${result.stdout ?? ''}${result.stderr ?? ''}${result.error?.message ?? ''}`);
  return outcome;
}
