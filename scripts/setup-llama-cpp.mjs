/**
 * Installs llama.cpp as the second engine: node-llama-cpp in the version of llama-cpp/package-lock.json, with its prebuilt library, then
 * loads it once.
 */
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { readFlags } from './lib/flags.mjs';
import { fromRoot } from './lib/paths.mjs';
import { runQuietly, SetupError, step, stopOnSignals } from './lib/step.mjs';

const FOLDER = fromRoot('llama-cpp');
const USAGE = `npm run setup:llama-cpp
  Installs llama.cpp as the second engine: about 100 MB, in the folder llama-cpp. Takes no options.`;

/** Its version. Only what was installed is loaded: nothing is fetched or compiled. */
async function loadOnce() {
  const { getLlama } = await import(pathToFileURL(path.join(FOLDER, 'node_modules/node-llama-cpp/dist/index.js')).href);
  const only = { gpu: false, build: 'never', skipDownload: true };
  const llama = await getLlama({ ...only, progressLogs: false, logLevel: 'error' });
  return llama.llamaCppRelease.release;
}

async function setup() {
  const { platform, arch } = process;
  if (platform !== 'linux' || arch !== 'x64') {
    throw new SetupError(`llama.cpp is installed for Linux on x86-64 only; this is ${platform} on ${arch}.`);
  }
  // Its own install script would fetch or compile; the package brings a library that runs as it is.
  const install = ['ci', '--ignore-scripts', '--no-audit', '--no-fund'];
  await step('node-llama-cpp (npm ci, about 100 MB)', () => runQuietly('npm', install, { cwd: FOLDER }));
  const version = await step('loading it', loadOnce);
  console.log(`llama.cpp ${version} is ready: GGUF files that the native engine cannot run are served with it.`);
}

readFlags(USAGE, []);
stopOnSignals();
try {
  await setup();
  // Nothing of the library is left to wait for.
  process.exit(0);
} catch (error) {
  console.error(error instanceof SetupError ? `\n${error.message}\n` : error);
  console.error('Set-up failed.');
  process.exitCode = 1;
}
