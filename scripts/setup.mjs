/**
 * Everything a fresh clone needs, and only what is stale: packages, the native addon, the compiled TypeScript.
 * No dependencies: it runs before there are any. `--dev` also wants the packages that only tests need.
 * TANDEM_CUDA=0 builds without CUDA even where nvcc is found.
 */
import { readFlags } from './lib/flags.mjs';
import { withSetupLock } from './lib/lock.mjs';
import { buildSqlite, installPackages, packageWork } from './lib/packages.mjs';
import { runQuietly, SetupError, step, stopOnSignals } from './lib/step.mjs';
import { checkBuildTool, checkCMake, checkCompiler, checkNode } from './lib/tools.mjs';

/** Loaded late: these resolve packages, which are not there before the first step. */
async function buildWork(installed) {
  const native = await import('./lib/native.mjs');
  const typescript = await import('./lib/typescript.mjs');
  const work = [];
  if (installed) work.push(buildSqlite());
  if (native.nativeIsStale()) work.push(step('native engine (C++)', () => native.buildNative(runQuietly)));
  if (typescript.typescriptIsStale()) work.push(step('TypeScript', () => typescript.buildTypescript(runQuietly)));
  // All of them end before the first fault is reported: no build is left running behind the prompt.
  const failed = (await Promise.allSettled(work)).find((result) => result.status === 'rejected');
  if (failed) throw failed.reason;
  return work.length > 0;
}

async function setup(withDev) {
  const started = Date.now();
  const packages = packageWork(withDev);
  if (packages === 'install') {
    console.log('Setting up Tandem: the first time takes one to three minutes.');
    // Looked for before anything is spent; the build checks them again.
    checkCMake();
    checkCompiler();
    checkBuildTool();
    await installPackages(withDev);
  }
  const built = await buildWork(packages !== null);
  if (built || packages) console.log(`  set-up finished in ${((Date.now() - started) / 1000).toFixed(1)} s`);
}

const { flags } = readFlags('npm run setup -- [--dev]', ['--dev']);
stopOnSignals();
try {
  checkNode();
  await withSetupLock(() => setup(flags.has('--dev')));
} catch (error) {
  console.error(error instanceof SetupError ? `\n${error.message}\n` : error);
  console.error('Set-up failed.');
  process.exitCode = 1;
}
