/** One set-up at a time in one folder: `npm start` and `npm test` may be typed side by side. */
import { mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fromRoot } from './paths.mjs';
import { SetupError } from './step.mjs';

const LOCK = fromRoot('.tandem', 'setup.lock');

/** Between the making of a lock and the writing of its holder. */
const UNWRITTEN_MS = 5_000;

function holder(lock) {
  try {
    const [pid, started] = readFileSync(lock, 'utf8').split(' ');
    return { pid: Number(pid), started };
  } catch {
    return { pid: 0 };
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

/** When a process began, in ticks of the machine; undefined where that is not shown. */
function startOf(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19];
  } catch {
    return undefined;
  }
}

/** Ids are given again, in a container that is started anew even to the same program: a holder is the process that began when it did. */
function isLeft(lock) {
  const { pid, started } = holder(lock);
  if (!pid) {
    const file = statSync(lock, { throwIfNoEntry: false });
    return file !== undefined && Date.now() - file.mtimeMs > UNWRITTEN_MS;
  }
  if (!alive(pid)) return true;
  return started !== undefined && (startOf(pid) ?? started) !== started;
}

function tryTake(lock) {
  try {
    mkdirSync(path.dirname(lock), { recursive: true });
    writeFileSync(lock, `${process.pid} ${startOf(process.pid) ?? ''}`.trim(), { flag: 'wx' });
    return true;
  } catch (error) {
    if (error.code === 'EEXIST') return false;
    if (!['EACCES', 'EPERM', 'EROFS'].includes(error.code)) throw error;
    throw new SetupError(
      `${path.dirname(lock)} cannot be written (${error.code}): set-up is for the owner of this folder.\n` +
        'What is built in it needs none to start: node dist/cli/main.js serve',
    );
  }
}

/** Runs `work` while holding the lock; the lock of a process that is gone is taken over. */
export async function withSetupLock(work, lock = LOCK) {
  let told = false;
  while (!tryTake(lock)) {
    if (isLeft(lock)) rmSync(lock, { force: true });
    else if (!told) console.log(`  waiting for another set-up in this folder (process ${holder(lock).pid}) ...`);
    told = true;
    await sleep(200);
  }
  const release = () => rmSync(lock, { force: true });
  process.once('exit', release);
  try {
    return await work();
  } finally {
    release();
    process.off('exit', release);
  }
}
