/** Keys of a running server: those of its data directory as they are now, and the first one of all. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { ServerKeys } from '../../../src/cli/key-setup.ts';
import { createKey } from '../../../src/control/store/api-keys.ts';
import { Database } from '../../../src/control/store/database.ts';
import { KeyRepository } from '../../../src/control/store/key-repository.ts';

let directory: string;
let mine: Database;
let other: Database;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-keys-'));
  mine = await Database.open(directory);
  other = await Database.open(directory);
});
afterEach(async () => {
  vi.restoreAllMocks();
  await mine.close();
  await other.close();
  rmSync(directory, { recursive: true, force: true });
});

test('keys that are made and revoked elsewhere count within a moment, also where the first look at them fails', async () => {
  const repository = new KeyRepository(other.db);
  const keys = await ServerKeys.open(mine, null);
  try {
    const { id, secret } = await createKey(repository, 'a', 'team');
    await expect.poll(() => keys.cache.find(secret)?.entity).toBe('team');
    const read = vi.spyOn(KeyRepository.prototype, 'all').mockRejectedValueOnce(new Error('database is locked'));
    await repository.revoke(id, 'now');
    await expect.poll(() => read.mock.calls.length).toBeGreaterThan(0);
    await expect.poll(() => keys.cache.find(secret), { timeout: 5_000 }).toBeNull();
  } finally {
    keys.close();
  }
});

test('looks at the keys wait for the one before them, however slow the database is', async () => {
  vi.useFakeTimers();
  let answer: (version: number) => void = () => undefined;
  const look = vi.spyOn(mine, 'dataVersion').mockImplementation(() => new Promise((resolve) => (answer = resolve)));
  const keys = await ServerKeys.open(mine, null);
  try {
    await vi.advanceTimersByTimeAsync(60_000);
    expect(look).toHaveBeenCalledTimes(1);
    answer(1);
    await vi.waitFor(async () => {
      await vi.advanceTimersByTimeAsync(1_000);
      expect(look).toHaveBeenCalledTimes(2);
    });
  } finally {
    keys.close();
    vi.useRealTimers();
  }
});

test('the first key is made where there never was one, and where none is given with the command', async () => {
  const given = await ServerKeys.open(mine, 'given');
  given.close();
  expect(await given.note()).toEqual({ kind: 'flag' });
  const keys = await ServerKeys.open(mine, null);
  keys.close();
  const note = await keys.note();
  expect(note.kind).toBe('new');
  expect(keys.cache.find(note.kind === 'new' ? note.secret : '')?.entity).toBe('default');
  expect(await keys.note()).toEqual({ kind: 'stored', count: 1 });
  const [key] = await new KeyRepository(other.db).all();
  await new KeyRepository(other.db).revoke(key?.id ?? '', 'now');
  await keys.cache.refresh();
  expect(await keys.note()).toEqual({ kind: 'stored', count: 0 });
});
