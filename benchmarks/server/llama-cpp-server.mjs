/**
 * llama.cpp's own server, built from the source that node-llama-cpp brings along (some ten minutes on two cores):
 * `npm run bench:build-peer-server`. bench:serve --peer measures it where it has been built, and llama-server.mjs where it has not.
 */
import { execFileSync, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { ensurePeers } from '../engine/peers.mjs';
import { runCommand } from '../lib/command.mjs';
import { freePort } from '../lib/free-port.mjs';

const PEERS = path.resolve(import.meta.dirname, '../peers');
const BUNDLE = path.join(PEERS, 'node_modules/node-llama-cpp/llama/gitRelease.bundle');
const FOLDER = path.join(PEERS, 'llama.cpp');
const BINARY = path.join(FOLDER, 'build/bin/llama-server');
const START_MS_MAX = 180_000;
const USAGE = `npm run bench:build-peer-server
  Builds llama.cpp's server into benchmarks/peers; takes no options.`;
const SWITCHES = [
  'CMAKE_BUILD_TYPE=Release',
  'GGML_NATIVE=ON',
  'BUILD_SHARED_LIBS=OFF',
  'LLAMA_BUILD_SERVER=ON',
  'LLAMA_BUILD_TESTS=OFF',
  'LLAMA_BUILD_EXAMPLES=OFF',
  'LLAMA_BUILD_APP=OFF',
  'LLAMA_USE_PREBUILT_UI=OFF',
  'LLAMA_OPENSSL=OFF',
];

export const isBuilt = () => existsSync(BINARY);

function build() {
  ensurePeers();
  const run = (command, args) => execFileSync(command, args, { stdio: 'inherit' });
  const source = path.join(FOLDER, 'source');
  if (!existsSync(source)) run('git', ['clone', '--quiet', BUNDLE, source]);
  const into = path.join(FOLDER, 'build');
  run('cmake', ['-S', source, '-B', into, ...SWITCHES.map((each) => `-D${each}`)]);
  run('cmake', ['--build', into, '--target', 'llama-server', '--parallel', String(os.availableParallelism())]);
}

async function ready(origin, child) {
  for (const end = Date.now() + START_MS_MAX; Date.now() < end; await sleep(200)) {
    if (child.exitCode !== null) throw new Error(`llama-server ended (${child.exitCode}).`);
    const answer = await fetch(`${origin}/health`).catch(() => null);
    if (answer?.ok) return;
  }
  throw new Error('llama-server does not become ready.');
}

/** { origin, variant, stop }: as many slots as `concurrency`, each with a context of its own. */
export async function startLlamaCppServer(gguf, { concurrency, context, threads }) {
  const port = await freePort();
  const flags = { m: gguf, np: concurrency, c: concurrency * context, t: threads, tb: threads, fa: 'on' };
  const args = Object.entries(flags).flatMap(([name, value]) => [`-${name}`, String(value)]);
  const where = ['--host', '127.0.0.1', '--port', String(port), '--no-webui', '--cache-ram', '0'];
  const child = spawn(BINARY, [...args, ...where], { stdio: 'ignore' });
  const origin = `http://127.0.0.1:${port}`;
  await ready(origin, child);
  return { origin, variant: 'llama-server', stop: () => child.kill() };
}

function parse() {
  return parseArgs({ options: { help: { type: 'boolean', default: false } } }).values;
}

if (process.argv[1] === import.meta.filename) await runCommand(USAGE, parse, build);
