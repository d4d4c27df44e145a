/** The native addon: native/ and CMakeLists.txt -> native-build/Release/tandem.node, by cmake-js. */
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { addon, nativeBuild, root } from './paths.mjs';
import { packageFile } from './packages.mjs';
import { hashInputs, readStamp, writeStamp } from './stamp.mjs';
import { checkBuildTool, checkCMake, checkCompiler } from './tools.mjs';

const STAMP = path.join(nativeBuild, '.tandem-stamp');

/** Whether CUDA is wanted; without nvcc it is not built all the same. */
export function withCuda() {
  return process.env.TANDEM_CUDA !== '0';
}

function cudaSwitch() {
  return withCuda() ? 'ON' : 'OFF';
}

function wantedHash() {
  const version = (name) => JSON.parse(readFileSync(packageFile(name), 'utf8')).version;
  const facts = { cuda: withCuda(), cxx: process.env.CXX ?? '', nodeAddonApi: version('node-addon-api') };
  return hashInputs(['native', 'CMakeLists.txt'], facts);
}

export function nativeIsStale() {
  return !existsSync(addon) || readStamp(STAMP) !== wantedHash();
}

/**
 * A build folder that was copied with its working tree would build the tree that it came from; and cmake-js configures a folder once, so that
 * one of a build without CUDA would stay so.
 */
function dropForeignBuild() {
  const cache = path.join(nativeBuild, 'CMakeCache.txt');
  if (!existsSync(cache)) return;
  const text = readFileSync(cache, 'utf8');
  const home = /^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$/m.exec(text)?.[1];
  const cuda = /^TANDEM_CUDA:BOOL=(.*)$/m.exec(text)?.[1];
  if (home !== root || cuda !== cudaSwitch()) rmSync(nativeBuild, { recursive: true, force: true });
}

/** Builds with the given runner (command, args) and stamps the result. */
export async function buildNative(run) {
  checkCMake();
  checkCompiler();
  checkBuildTool();
  dropForeignBuild();
  const hash = wantedHash();
  const cli = path.join(path.dirname(packageFile('cmake-js')), 'bin', 'cmake-js');
  const jobs = String(availableParallelism());
  const args = [cli, 'compile', '-d', root, '-O', nativeBuild, '--parallel', jobs];
  args.push(`--CDTANDEM_CUDA=${cudaSwitch()}`);
  await run(process.execPath, args);
  if (!existsSync(addon)) throw new Error(`The native build ended without ${path.relative(root, addon)}.`);
  writeStamp(STAMP, hash);
}
