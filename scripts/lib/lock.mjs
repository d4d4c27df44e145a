/** One set-up at a time in one folder: `npm start` and `npm test` may be typed side by side. */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fromRoot } from './paths.mjs';

const LOCK = fromRoot('.tandem', 'setup.lock');

function holder() {
  try {
    return Number(readFileSync(LOCK, 'utf8'));
  } catch {
    return 0;
  }
}

function alive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return error.code === 'EPERM';
  }
}

function tryTake() {
  try {
    writeFileSync(LOCK, String(process.pid), { flag: 'wx' });
    return true;
  } catch (error) {
    if (error.code === 'EEXIST') return false;
    throw error;
  }
}

/** Runs `work` while holding the lock; the lock of a process that is gone is taken over. */
export async function withSetupLock(work) {
  mkdirSync(path.dirname(LOCK), { recursive: true });
  let told = false;
  while (!tryTake()) {
    const pid = holder();
    if (pid && !alive(pid)) rmSync(LOCK, { force: true });
    else if (!told) console.log(`  waiting for another set-up in this folder (process ${pid}) ...`);
    told = true;
    await sleep(200);
  }
  const release = () => rmSync(LOCK, { force: true });
  process.once('exit', release);
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => process.exit(130));
  try {
    return await work();
  } finally {
    release();
    process.off('exit', release);
  }
}
