/** A set-up that is stopped leaves nothing running that would meet the next one. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';
import { afterEach, beforeEach, expect, test } from 'vitest';

let folder: string;
beforeEach(() => (folder = mkdtempSync(join(tmpdir(), 'tandem-stop-'))));
afterEach(() => rmSync(folder, { recursive: true }));

/** Like npm, it tidies up for a while when it is asked to end, and has started something itself. */
const CHILD = `
  const { writeFileSync, renameSync } = require('fs');
  const { spawn } = require('child_process');
  const tidied = () => { writeFileSync('tidied', ''); process.exit(1); };
  process.once('SIGTERM', () => setTimeout(tidied, Number(process.argv[1])));
  const started = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)'], { stdio: 'ignore' });
  writeFileSync('starting', String(started.pid));
  renameSync('starting', 'started');
  setInterval(() => {}, 1000);`;

async function start(tidyMs: number) {
  const step = pathToFileURL(resolve('scripts/lib/step.mjs')).href;
  const code = `
    import { runQuietly, stopOnSignals } from '${step}';
    stopOnSignals();
    await runQuietly(process.execPath, ['-e', ${JSON.stringify(CHILD)}, '${tidyMs}'], { cwd: ${JSON.stringify(folder)} });`;
  const setup = spawn(process.execPath, ['--input-type=module', '-e', code], { stdio: ['ignore', 'ignore', 'pipe'] });
  let said = '';
  setup.stderr.on('data', (chunk) => (said += String(chunk)));
  const ended = once(setup, 'close');
  while (!existsSync(join(folder, 'started'))) await sleep(20);
  return { setup, ended, said: () => said, started: Number(readFileSync(join(folder, 'started'), 'utf8')) };
}

test('it ends when what it has started has ended', async () => {
  const { setup, ended, said, started } = await start(1000);
  setup.kill('SIGINT');
  // As npm passes it on.
  setup.kill('SIGINT');
  expect((await ended)[0]).toBe(130);
  expect(existsSync(join(folder, 'tidied'))).toBe(true);
  expect(() => process.kill(started, 0)).toThrow('ESRCH');
  expect(said()).toBe('Stopping: what was started ends first.\n');
});

test('a later signal does not wait for that', async () => {
  const { setup, ended } = await start(600_000);
  setup.kill('SIGTERM');
  await sleep(600);
  setup.kill('SIGTERM');
  expect((await ended)[0]).toBe(130);
  expect(existsSync(join(folder, 'tidied'))).toBe(false);
});
