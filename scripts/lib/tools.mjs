/** The tools that npm cannot bring, and a plain sentence for each that is missing. */
import { spawnSync } from 'node:child_process';
import { SetupError } from './step.mjs';

const NODE_MIN = [20, 19];
const CMAKE_MIN = [3, 20];

function older([major, minor], [wantMajor, wantMinor]) {
  return major < wantMajor || (major === wantMajor && minor < wantMinor);
}

function versionIn(text) {
  const match = /(\d+)\.(\d+)/.exec(text);
  return match ? [Number(match[1]), Number(match[2])] : null;
}

export function checkNode() {
  if (older(versionIn(process.versions.node), NODE_MIN)) {
    throw new SetupError(
      `Tandem needs Node.js ${NODE_MIN.join('.')} or newer; this is ${process.version}. Get it from https://nodejs.org.`,
    );
  }
}

export function checkCMake() {
  const result = spawnSync('cmake', ['--version'], { encoding: 'utf8' });
  const version = result.status === 0 ? versionIn(result.stdout) : null;
  if (!version || older(version, CMAKE_MIN)) {
    const found = version ? `found ${version.join('.')}` : 'it was not found';
    throw new SetupError(
      `Building the engine needs CMake ${CMAKE_MIN.join('.')} or newer (${found}).\n` +
        'Debian/Ubuntu: apt-get install cmake    Fedora: dnf install cmake',
    );
  }
}

export function checkCompiler() {
  const candidates = process.env.CXX ? [process.env.CXX] : ['c++', 'g++', 'clang++'];
  const probe = '#include <span>\n#include <bit>\n#include <concepts>\nint main() { return std::popcount(0u); }\n';
  for (const compiler of candidates) {
    const options = { input: probe, encoding: 'utf8' };
    if (spawnSync(compiler, ['-std=c++20', '-x', 'c++', '-fsyntax-only', '-'], options).status === 0) return;
  }
  throw new SetupError(
    `Building the engine needs a C++20 compiler (GCC 11 or newer, or Clang 14 or newer); tried ${candidates.join(', ')}.\n` +
      'Debian/Ubuntu: apt-get install g++ make    Fedora: dnf install gcc-c++ make',
  );
}

/** CMake needs something to run its builds with. */
export function checkBuildTool() {
  for (const tool of ['ninja', 'make']) {
    if (spawnSync(tool, ['--version']).status === 0) return;
  }
  throw new SetupError(
    'Building the engine needs make or ninja.\nDebian/Ubuntu: apt-get install make    Fedora: dnf install make',
  );
}
