/**
 * The package's `install` script: builds the native addon where it is missing or stale, with its output shown.
 * TANDEM_CUDA=0 builds without CUDA.
 */
import { spawn } from 'node:child_process';
import { readFlags } from './lib/flags.mjs';
import { buildNative, nativeIsStale } from './lib/native.mjs';
import { root } from './lib/paths.mjs';
import { SetupError } from './lib/step.mjs';
import { checkNode } from './lib/tools.mjs';

function runShown(command, args) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { cwd: root, stdio: 'inherit' });
    child.on('error', reject);
    child.on('close', (code) => (code === 0 ? resolve() : reject(new SetupError(`${command} failed (exit ${code}).`))));
  });
}

readFlags('node scripts/build-native.mjs', []);
try {
  checkNode();
  if (nativeIsStale()) await buildNative(runShown);
} catch (error) {
  console.error(error instanceof SetupError ? error.message : error);
  process.exitCode = 1;
}
