/** Builds the limits tool where it is missing or stale, and runs it. */
import { execFile, execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, statSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const SOURCE = path.join(import.meta.dirname, 'limits.cc');
const PROGRAM = path.join(import.meta.dirname, 'build', 'limits');

function build() {
  if (existsSync(PROGRAM) && statSync(PROGRAM).mtimeMs >= statSync(SOURCE).mtimeMs) return;
  mkdirSync(path.dirname(PROGRAM), { recursive: true });
  execFileSync(process.env.CXX ?? 'c++', ['-std=c++20', '-O3', '-pthread', SOURCE, '-o', PROGRAM], {
    stdio: 'inherit',
  });
}

/** {threads, dram_read_gb_s, fp32_gflop_s, bf16_gflop_s | null, int8_gop_s | null}, the best of a few tries each. */
export async function measureLimits(threads) {
  build();
  const { stdout } = await run(PROGRAM, [String(threads)]);
  return JSON.parse(stdout);
}

/** {best, mean} of a second of reading, GB/s. */
export async function measureReadBandwidth(threads) {
  build();
  const { stdout } = await run(PROGRAM, [String(threads), 'read']);
  return JSON.parse(stdout);
}
