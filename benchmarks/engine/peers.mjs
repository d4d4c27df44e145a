/** Installs the peers where they are missing: their own package, their own lock file. */
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import path from 'node:path';

const PEERS = path.resolve(import.meta.dirname, '../peers');

export const PEER_NAME = 'llama.cpp (node-llama-cpp 3.21.1)';

export function ensurePeers(name = 'node-llama-cpp') {
  if (existsSync(path.join(PEERS, 'node_modules', name, 'package.json'))) return;
  console.error('Installing the peers (npm ci in benchmarks/peers) ...');
  execFileSync('npm', ['ci', '--ignore-scripts', '--no-audit', '--no-fund'], { cwd: PEERS, stdio: 'inherit' });
}
