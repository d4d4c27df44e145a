/** `npm run build`: the native addon and the compiled TypeScript, each only when stale; `--force` builds both. */
import { readFlags } from './lib/flags.mjs';
import { buildNative, nativeIsStale } from './lib/native.mjs';
import { runQuietly, SetupError, step, stopOnSignals } from './lib/step.mjs';
import { checkNode } from './lib/tools.mjs';
import { buildTypescript, typescriptIsStale } from './lib/typescript.mjs';

const force = readFlags('npm run build -- [--force]', ['--force']).flags.has('--force');
stopOnSignals();
try {
  checkNode();
  if (force || nativeIsStale()) await step('native engine (C++)', () => buildNative(runQuietly));
  if (force || typescriptIsStale()) await step('TypeScript', () => buildTypescript(runQuietly));
} catch (error) {
  console.error(error instanceof SetupError ? error.message : error);
  process.exitCode = 1;
}
