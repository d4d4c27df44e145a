/** One set-up at a time, and none that waits for one that is gone. */
import { mkdtempSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { withSetupLock } from '../../scripts/lib/lock.mjs';

let lock: string;
beforeEach(() => {
  lock = join(mkdtempSync(join(tmpdir(), 'tandem-lock-')), 'setup.lock');
});
afterEach(() => rmSync(dirname(lock), { recursive: true }));

test('a second set-up waits for the first', async () => {
  const order: string[] = [];
  await withSetupLock(async () => {
    const second = withSetupLock(() => Promise.resolve(order.push('second')), lock);
    // Long enough for it to try again.
    await new Promise((resolve) => setTimeout(resolve, 500));
    order.push('first');
    return { second };
  }, lock).then(({ second }: { second: Promise<unknown> }) => second);
  expect(order).toEqual(['first', 'second']);
  expect(statSync(lock, { throwIfNoEntry: false })).toBeUndefined();
});

test.each([
  ['a process that is gone', '4194305'],
  ['a process whose id another one has now', `${process.ppid} 1`],
  ['this process before its container was started anew', `${process.pid} 1`],
])('the lock of %s is taken over', async (_, text) => {
  writeFileSync(lock, text);
  expect(await withSetupLock(() => Promise.resolve(readFileSync(lock, 'utf8')), lock)).toMatch(
    new RegExp(`^${process.pid}( \\d+)?$`),
  );
});

test('a lock that was cut off before its holder was written is taken over after a while', async () => {
  writeFileSync(lock, '');
  utimesSync(lock, 0, 0);
  expect(await withSetupLock(() => Promise.resolve(1), lock)).toBe(1);
});

test('a folder that cannot be written is named, with what to do', async () => {
  await expect(withSetupLock(() => Promise.resolve(1), '/sys/tandem/setup.lock')).rejects.toThrow(
    /^\/sys\/tandem cannot be written \((EACCES|EPERM|EROFS)\): set-up is for the owner of this folder\.\n/,
  );
});
