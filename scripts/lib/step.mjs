/** Running the stages of a set-up: one progress line each, their output only when they fail. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setPriority } from 'node:os';
import { root } from './paths.mjs';

/** An error whose message is written for the person at the terminal; no stack is shown. */
export class SetupError extends Error {}

/** Ctrl-C reaches all of a terminal's processes, and npm passes on what it gets: one stop that arrives twice. */
const SAME_STOP_MS = 500;

/** Commands that have not ended. */
const running = new Set();
let heedsSignals = false;
let stopping = false;

/**
 * From now on a signal ends this process with what it has started: after that, as npm takes back what it has unpacked, and the next set-up
 * would unpack beside it. A later signal does not wait.
 */
export function stopOnSignals() {
  heedsSignals = true;
  let first = null;
  const stopAll = () => {
    if (first !== null) {
      if (performance.now() - first > SAME_STOP_MS) process.exit(130);
      return;
    }
    first = performance.now();
    stopping = true;
    if (running.size > 0) console.error('Stopping: what was started ends first.');
    const ended = [...running].map((child) => once(child, 'close'));
    running.forEach(stop);
    Promise.allSettled(ended).then(() => process.exit(130));
  };
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, stopAll);
}

function stop(child) {
  try {
    process.kill(heedsSignals ? -child.pid : child.pid, 'SIGTERM');
  } catch {
    // It has ended, or never began.
  }
}

/**
 * Runs a command to its end with its output kept back; rejects with the end of that output when it fails. `priority` as of os.setPriority.
 */
export function runQuietly(command, args, { env = {}, cwd = root, priority } = {}) {
  return new Promise((resolve, reject) => {
    const stdio = ['ignore', 'pipe', 'pipe'];
    // A group of its own, so that what it starts in turn is stopped with it; Ctrl-C does not reach that.
    const child = spawn(command, args, { cwd, env: { ...process.env, ...env }, stdio, detached: heedsSignals });
    if (priority !== undefined && child.pid !== undefined) setPriority(child.pid, priority);
    running.add(child);
    // Whoever stops the set-up stops what it started.
    const end = () => stop(child);
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
      running.delete(child);
      // That it was stopped is no fault to tell.
      if (stopping) return;
      if (code === 0) resolve(output);
      else
        reject(new SetupError(`${tail(output)}\n${command} ${args.join(' ')} failed (${signal ?? `exit ${code}`}).`));
    });
  });
}

/** What a command prints, and its exit code: 1 where it was killed or could not be started. `priority` as of os.setPriority. */
export function outputOf(command, args, { env = {}, priority } = {}) {
  return new Promise((resolve) => {
    const child = spawn(command, args, {
      cwd: root,
      env: { ...process.env, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    if (priority !== undefined && child.pid !== undefined) setPriority(child.pid, priority);
    let output = '';
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text) => (output += text));
    child.on('error', (error) => resolve({ output: `${command} could not be started: ${error.message}`, code: 1 }));
    child.on('close', (code) => resolve({ output, code: code ?? 1 }));
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
