/** Starts this repository's server on a free port for a measurement and stops it afterwards. */
import { execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { freePort } from '../lib/free-port.mjs';

const MAIN = path.resolve(import.meta.dirname, '../../dist/cli/main.js');
const START_MS_MAX = 180_000;

async function isReady(origin) {
  try {
    return (await fetch(`${origin}/ready`)).ok;
  } catch {
    return false;
  }
}

/** A key of another entity, stored before the server starts. */
function createKey(data, entity) {
  const output = execFileSync(process.execPath, [MAIN, 'keys', 'create', '--entity', entity, '--data-dir', data]);
  return /tk-\S+/.exec(String(output))[0];
}

/** Returns { baseUrl, pid, apiKey, keys of `entities`, stop }; its log is shown when it does not become ready. */
export async function startServer(directory, extraArgs, entities = []) {
  const port = await freePort();
  const origin = `http://127.0.0.1:${port}`;
  const apiKey = `bench-${randomBytes(16).toString('hex')}`;
  const data = mkdtempSync(path.join(tmpdir(), 'tandem-bench-'));
  const keys = entities.map((entity) => createKey(data, entity));
  const flags = ['--host', '127.0.0.1', '--port', String(port), '--model', directory, '--data-dir', data];
  const child = spawn(process.execPath, [MAIN, 'serve', ...flags, ...extraArgs], {
    env: { ...process.env, TANDEM_API_KEY: apiKey },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let log = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (chunk) => (log = (log + chunk).slice(-20_000)));
  }
  const exited = new Promise((resolve) => child.on('exit', resolve));
  const stop = async () => {
    child.kill('SIGTERM');
    const forced = setTimeout(() => child.kill('SIGKILL'), 20_000);
    await exited;
    clearTimeout(forced);
    rmSync(data, { recursive: true, force: true });
  };
  const deadline = Date.now() + START_MS_MAX;
  while (!(await isReady(origin))) {
    if (child.exitCode !== null || Date.now() > deadline) {
      await stop();
      throw new Error(`The server did not become ready:\n${log}`);
    }
    await sleep(100);
  }
  return { baseUrl: `${origin}/v1`, pid: child.pid, apiKey, keys, stop };
}
