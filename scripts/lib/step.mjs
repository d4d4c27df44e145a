/** Running the stages of a set-up: one progress line each, their output only when they fail. */
import { spawn } from 'node:child_process';
import { root } from './paths.mjs';

/** An error whose message is written for the person at the terminal; no stack is shown. */
export class SetupError extends Error {}

/** Runs a command to its end with its output kept back; rejects with the end of that output when it fails. */
export function runQuietly(command, args, { env = {}, cwd = root } = {}) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { cwd, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] });
    // Whoever stops the set-up stops what it started.
    const end = () => child.kill();
    process.once('exit', end);
    let output = '';
    const keep = (chunk) => {
      output = (output + chunk).slice(-200_000);
    };
    child.stdout.setEncoding('utf8').on('data', keep);
    child.stderr.setEncoding('utf8').on('data', keep);
    child.on('error', (error) => reject(new SetupError(`Could not run ${command}: ${error.message}`)));
    child.on('close', (code, signal) => {
      process.off('exit', end);
      if (code === 0) resolve(output);
      else
        reject(new SetupError(`${tail(output)}\n${command} ${args.join(' ')} failed (${signal ?? `exit ${code}`}).`));
    });
  });
}

/** The part of a build log that names the fault: from its first error on, at most 60 lines. */
function tail(output) {
  const lines = output.trimEnd().split('\n');
  const first = lines.findIndex((line) => /\berror:|error TS\d|npm error|CMake Error/i.test(line));
  return lines
    .slice(first >= 0 ? Math.max(0, first - 2) : -60)
    .slice(0, 60)
    .join('\n');
}

/** Prints what begins and how long it took. */
export async function step(title, work) {
  const started = Date.now();
  console.log(`  ${title} ...`);
  const result = await work();
  console.log(`  ${title}: done in ${((Date.now() - started) / 1000).toFixed(1)} s`);
  return result;
}
