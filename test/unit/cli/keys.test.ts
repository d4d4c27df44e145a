/** What `tandem keys` refuses before it makes anything. */
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command } from 'commander';
import { Kysely, Migrator } from 'kysely';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { addKeysCommand } from '../../../src/cli/keys.ts';
import { Database } from '../../../src/control/store/database.ts';
import { DataDirLock } from '../../../src/control/store/data-dir-lock.ts';
import { MIGRATIONS } from '../../../src/control/store/migrations/list.ts';
import { SqliteClient, sqliteThreadDialect } from '../../../src/control/store/sqlite-client.ts';

/** However busy the machine is. */
const GENEROUS_MS = 60_000;

let directory: string;
let printed: string[];
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-keys-'));
  printed = [];
});
afterEach(() => {
  vi.unstubAllEnvs();
  rmSync(directory, { recursive: true });
});

function keys(...args: string[]): Promise<unknown> {
  const program = new Command('tandem').exitOverride().configureOutput({ writeErr: () => undefined });
  addKeysCommand(program, (line) => printed.push(line));
  // Commands below inherit nothing of what was set before they were added.
  for (const command of program.commands.flatMap((one) => one.commands))
    command.exitOverride().configureOutput({ writeErr: () => undefined });
  return program.parseAsync(['keys', ...args], { from: 'user' });
}

test.each(['create', 'list'])(
  'keys %s takes no empty data directory, which would be the folder it is called in',
  async (command) => {
    await expect(keys(command, '--data-dir', '')).rejects.toThrow("'--data-dir <value>' argument '' is invalid");
    vi.stubEnv('TANDEM_DATA_DIR', '');
    await expect(keys(command)).rejects.toThrow(/TANDEM_DATA_DIR.*It must not be empty/);
    expect(existsSync('tandem.db')).toBe(false);
  },
);

test('the variable names the data directory, a flag wins over it', async () => {
  vi.stubEnv('TANDEM_DATA_DIR', join(directory, 'a'));
  await keys('create', '--name', 'laptop');
  await keys('create', '--data-dir', join(directory, 'b'));
  expect(readdirSync(directory)).toEqual(['a', 'b']);
  printed = [];
  await keys('list');
  expect(printed).toEqual([expect.stringContaining('  default  laptop  created ')]);
});

test.each(['', 'a\nb', 'a\u001b[2Jb'])('a name that would spoil the list is refused (%j)', async (name) => {
  await expect(keys('create', '--data-dir', directory, '--name', name)).rejects.toThrow("'--name <value>'");
  expect(readdirSync(directory)).toEqual([]);
});

/** What was made by a version that lacks the last migration: those that are made now. */
async function ofOlderVersion<T>(use: (made: () => Promise<string[]>) => Promise<T>): Promise<T> {
  const client = new SqliteClient({ path: join(directory, 'tandem.db'), busyTimeoutMs: 5_000 });
  const db = new Kysely<{ kysely_migration: { name: string } }>({ dialect: sqliteThreadDialect(client) });
  const known = Object.fromEntries(Object.entries(MIGRATIONS).slice(0, -1));
  await new Migrator({ db, provider: { getMigrations: () => Promise.resolve(known) } }).migrateToLatest();
  try {
    return await use(async () =>
      (await db.selectFrom('kysely_migration').select('name').execute()).map(({ name }) => name).sort(),
    );
  } finally {
    await db.destroy();
  }
}

test('what a running server of an older version uses is left as it is; without one it is brought up to date', async () => {
  await ofOlderVersion(async (made) => {
    const server = DataDirLock.acquire(directory);
    const before = await made();
    await expect(keys('list', '--data-dir', directory)).rejects.toThrow(
      `A server of an older version is using the data directory ${directory}, which this version would change: stop it first.`,
    );
    expect(await made()).toEqual(before);
    expect(printed).toEqual([]);
    server.release();
    await keys('create', '--data-dir', directory);
    expect(await made()).toEqual(Object.keys(MIGRATIONS));
    // Nobody has the lock any more.
    DataDirLock.acquire(directory).release();
  });
});

test('a server that is just starting brings its data up to date first', async () => {
  await ofOlderVersion(async (made) => {
    const server = DataDirLock.acquire(directory);
    const opened = [Database.openBeside(directory, GENEROUS_MS), Database.open(directory)];
    for (const database of await Promise.all(opened)) await database.close();
    expect(await made()).toEqual(Object.keys(MIGRATIONS));
    server.release();
  });
});
