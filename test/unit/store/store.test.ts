import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { sql, type CompiledQuery, type QueryResult } from 'kysely';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { createKey, KeyCache } from '../../../src/control/store/api-keys.ts';
import { FolderBlobStore } from '../../../src/control/store/blob-store.ts';
import { Database } from '../../../src/control/store/database.ts';
import { DataDirLock } from '../../../src/control/store/data-dir-lock.ts';
import { KeyRepository } from '../../../src/control/store/key-repository.ts';
import { MIGRATIONS } from '../../../src/control/store/migrations/list.ts';
import { SqliteClient } from '../../../src/control/store/sqlite-client.ts';

const TABLES = [
  'api_keys',
  'artifact_files',
  'artifacts',
  'checkpoint_metrics',
  'checkpoints',
  'deleted_checkpoints',
  'deleted_models',
  'entities',
  'entity_storage',
  'idempotency_keys',
  'job_events',
  'job_references',
  'jobs',
  'leaving_models',
  'models',
  'response_totals',
  'responses',
  'run_history',
  'trajectory_logs',
];

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-store-'));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

async function withDatabase<T>(use: (database: Database) => Promise<T>): Promise<T> {
  const database = await Database.open(directory);
  try {
    return await use(database);
  } finally {
    await database.close();
  }
}

test('migrations run once, in order', async () => {
  expect(Object.keys(MIGRATIONS)).toEqual(Object.keys(MIGRATIONS).sort());
  for (let opening = 0; opening < 2; opening++) {
    const names = await withDatabase(async ({ db }) => (await db.introspection.getTables()).map((table) => table.name));
    expect(names.sort()).toEqual(TABLES);
  }
});

/** Opens the database; the process ends before the `at`-th statement: none runs any more, not even a rollback. True: it ended there. */
async function cutOff(path: string, at: number): Promise<boolean> {
  const real = SqliteClient.prototype.executeQuery;
  let statements = 0;
  SqliteClient.prototype.executeQuery = async function <R>(this: SqliteClient, query: CompiledQuery) {
    if (++statements >= at) throw new Error('killed');
    return (await real.call(this, query)) as QueryResult<R>;
  };
  try {
    await (await Database.open(path)).close();
    return false;
  } catch {
    return true;
  } finally {
    SqliteClient.prototype.executeQuery = real;
  }
}

test('migrations that are cut off before any statement are made by the next start', async () => {
  let at = 1;
  for (let cut = true; cut; at++) {
    const path = join(directory, String(at));
    cut = await cutOff(path, at);
    const database = await Database.open(path);
    const names = (await database.db.introspection.getTables()).map((table) => table.name);
    await database.close();
    expect(names.sort(), `cut off before statement ${at}`).toEqual(TABLES);
  }
  expect(at).toBeGreaterThan(30);
}, 120_000);

test('what a newer version has used is left as it is, and said so', async () => {
  await withDatabase(async ({ db }) => {
    const { sql } = await import('kysely');
    await sql`insert into kysely_migration (name, timestamp) values ('9999-later', '2099-01-01')`.execute(db);
  });
  await expect(Database.open(directory)).rejects.toThrow(
    'A newer version has used the data directory (9999-later): start that one, or give --data-dir another folder.',
  );
});

test('durable settings are on', async () => {
  await withDatabase(async ({ db }) => {
    const pragma = async (name: string) => {
      const { sql } = await import('kysely');
      const result = await sql<Record<string, unknown>>`pragma ${sql.raw(name)}`.execute(db);
      return Object.values(result.rows[0] ?? {})[0];
    };
    expect(await pragma('journal_mode')).toBe('wal');
    expect(await pragma('synchronous')).toBe(2);
    expect(await pragma('foreign_keys')).toBe(1);
  });
  expect(statSync(join(directory, 'tandem.db')).mode & 0o077).toBe(0);
});

test('a key is found by its text, stored by its hash, and gone when revoked', async () => {
  await withDatabase(async (database) => {
    const repository = new KeyRepository(database.db);
    const cache = new KeyCache(repository, 'fixed-key');
    const first = await createKey(repository, 'a', 'team');
    const second = await createKey(repository, 'b', 'default');
    await createKey(repository, 'c', 'team');
    expect(first.secret).toMatch(/^tk-[\w-]{43}$/);
    expect(cache.find(first.secret)).toBeNull();
    await cache.refresh();
    expect(cache.size).toBe(4);
    expect(cache.find(first.secret)).toEqual({ keyId: first.id, entity: 'team' });
    expect(cache.find(second.secret)).toEqual({ keyId: second.id, entity: 'default' });
    expect(cache.find('fixed-key')).toEqual({ keyId: 'command-line', entity: 'default' });
    for (const wrong of ['', 'tk-', `${first.secret} `, first.secret.slice(0, -1), first.id])
      expect(cache.find(wrong)).toBeNull();

    expect(await repository.revoke(first.id, 'now')).toBe(true);
    expect(await repository.revoke(first.id, 'later')).toBe(false);
    expect(await repository.revoke('none', 'now')).toBe(false);
    await cache.refresh();
    expect(cache.find(first.secret)).toBeNull();
    expect(cache.find(second.secret)).not.toBeNull();
    const stored = await repository.all();
    expect(stored.map((key) => [key.name, key.entity, key.revokedAt])).toEqual([
      ['a', 'team', 'now'],
      ['b', 'default', null],
      ['c', 'team', null],
    ]);
    expect(stored.every((key) => /^[0-9a-f]{64}$/.test(key.hash))).toBe(true);
    for (const file of readdirSync(directory)) {
      const bytes = readFileSync(join(directory, file));
      expect(bytes.includes(first.secret) || bytes.includes('fixed-key'), file).toBe(false);
    }
  });
});

test('another connection shows in the data version', async () => {
  await withDatabase(async (mine) => {
    const before = await mine.dataVersion();
    expect(await mine.dataVersion()).toBe(before);
    await withDatabase(async (other) => {
      await createKey(new KeyRepository(other.db), 'x', 'default');
    });
    expect(await mine.dataVersion()).not.toBe(before);
  });
});

test('a lock file that cannot be opened, or is something else, is named', () => {
  const path = join(directory, 'server.lock');
  mkdirSync(path);
  expect(() => DataDirLock.acquire(directory)).toThrow(`${path} in the data directory cannot be opened for writing: `);
  rmSync(path, { recursive: true });
  writeFileSync(path, 'no lock '.repeat(1000));
  expect(() => DataDirLock.acquire(directory)).toThrow(`${path} in the data directory cannot be locked: `);
});

test('a database that is none is named', async () => {
  const path = join(directory, 'tandem.db');
  writeFileSync(path, 'no database '.repeat(1000));
  await expect(Database.open(directory)).rejects.toThrow(`The database ${path} is damaged: file is not a database`);
});

test('a database that is damaged is named, when it is opened and when it is asked', async () => {
  const path = join(directory, 'tandem.db');
  await withDatabase(({ db }) => sql`pragma wal_checkpoint(truncate)`.execute(db));
  const whole = readFileSync(path);
  await withDatabase(async ({ db }) => {
    truncateSync(path, 4096);
    const asked = db.selectFrom('models').selectAll().execute();
    await expect(asked).rejects.toThrow(`The database ${path} is damaged: database disk image is malformed`);
  });
  writeFileSync(path, whole.subarray(0, 4096));
  await expect(Database.open(directory)).rejects.toThrow(`The database ${path} is damaged: database disk image is`);
});

test.each(['missing', 'empty'])(
  'where the database is %s no other takes its place while files are there that it named',
  async (how) => {
    const path = join(directory, 'tandem.db');
    if (how === 'empty') writeFileSync(path, '');
    const blobs = new FolderBlobStore(join(directory, 'blobs'));
    // Not whole, they are nobody's.
    const draft = await blobs.draft('adapters');
    await withDatabase(() => Promise.resolve());
    for (const file of ['tandem.db', 'tandem.db-wal', 'tandem.db-shm']) rmSync(join(directory, file), { force: true });
    if (how === 'empty') writeFileSync(path, '');
    await draft.seal();
    const opening = Database.open(directory);
    await expect(opening).rejects.toThrow(
      `The database ${path} is ${how}, but files of models, jobs or artifacts lie in`,
    );
    await blobs.remove(draft.key);
    await withDatabase(() => Promise.resolve());
  },
);

test('no room for the memory that connections share is told as a full disk', () => {
  // 10 or 20 KiB of each file, by the shell, where that one takes 32.
  const limited = 'ulimit -f 20 && exec "$0" dist/cli/main.js keys create --data-dir "$1"';
  const { stderr } = spawnSync('sh', ['-c', limited, process.execPath, directory], { encoding: 'utf8' });
  expect(stderr).toContain('could not be opened or brought up to date: database or disk is full');
});

/** What goes wrong for another user; only root can become one. */
function asNobody(call: string): string {
  const module = (name: string) => pathToFileURL(resolve(`dist/${name}.js`)).href;
  // With SQLite loaded before: whoever it becomes may read nothing of ours.
  const code = `import Sqlite from 'better-sqlite3';
    new Sqlite(':memory:').close();
    const { Command } = await import('commander');
    const { DataDirLock } = await import('${module('control/store/data-dir-lock')}');
    const { Database } = await import('${module('control/store/database')}');
    const { addKeysCommand } = await import('${module('cli/keys')}');
    const keys = (...args) => {
      const program = new Command();
      addKeysCommand(program, console.log);
      return program.parseAsync(['keys', ...args], { from: 'user' });
    };
    if (process.getuid() === 0) process.setuid(65534);
    await ${call}(process.argv[1]);`;
  const args = ['--input-type=module', '-e', code, directory];
  const { stderr, status } = spawnSync(process.execPath, args, { encoding: 'utf8', timeout: 120_000 });
  expect(status).toBe(1);
  return stderr;
}

test('a lock file that may only be read is no lock', () => {
  const path = join(directory, 'server.lock');
  writeFileSync(path, '', { mode: 0o444 });
  chmodSync(directory, 0o777);
  expect(asNobody('DataDirLock.acquire')).toContain(
    `${path} in the data directory cannot be opened for writing: EACCES`,
  );
});

test.each(['server.lock', 'tandem.db'])('a pipe in place of %s is refused, not waited for', (name) => {
  const path = join(directory, name);
  expect(spawnSync('mkfifo', ['-m', '666', path]).status).toBe(0);
  chmodSync(directory, 0o777);
  const open = name === 'tandem.db' ? '((path) => Database.open(path))' : 'DataDirLock.acquire';
  expect(asNobody(open)).toContain(`${path} in the data directory cannot be opened for writing: ENXIO`);
});

test.runIf(process.getuid?.() === 0)('files of another user are told with whose they are', async () => {
  const path = join(directory, 'tandem.db');
  const start = (name: string) =>
    `${name} in the data directory cannot be opened for writing: EACCES: permission denied`;
  const end = (name: string) => `(${name} belongs to user 0, this process runs as 65534)`;
  // The folder itself, as a backup leaves it that root has restored.
  for (const mode of [0o700, 0o755]) {
    chmodSync(directory, mode);
    expect(asNobody('DataDirLock.acquire')).toContain(start(join(directory, 'server.lock')));
    expect(asNobody('DataDirLock.acquire')).toContain(end(basename(directory)));
  }
  await withDatabase(() => Promise.resolve());
  // As the server has made it: it does not even show what is in it.
  chmodSync(directory, 0o700);
  for (const command of ["'list'", "'revoke', 'id'", "'create'"]) {
    const told = asNobody(`((path) => keys(${command}, '--data-dir', path))`);
    expect(told).toContain(start(path));
    expect(told).toContain(end(basename(directory)));
  }
  chmodSync(directory, 0o777);
  expect(asNobody('Database.open')).toContain(start(path));
  expect(asNobody('Database.open')).toContain(end('tandem.db'));
});

test('a data directory is made with its parents, or it is said why not', async () => {
  const inner = join(directory, 'a', 'b');
  DataDirLock.acquire(inner).release();
  expect(statSync(inner).mode & 0o777).toBe(0o700);
  // A file, below a file, and where the kernel takes no folders.
  for (const path of [join(inner, 'server.lock'), join(inner, 'server.lock', 'c'), '/proc/tandem/c']) {
    expect(() => DataDirLock.acquire(path)).toThrow(`The data directory ${path} cannot be made: `);
    await expect(Database.open(path)).rejects.toThrow(`The data directory ${path} cannot be made: `);
  }
});

test('a data directory whose path is too long is refused before anything is made', async () => {
  const ofBytes = (base: string, bytes: number): string => {
    const left = bytes - Buffer.byteLength(base) - 1;
    return left > 250 ? ofBytes(join(base, 'é'.repeat(50)), bytes) : join(base, 'a'.repeat(left));
  };
  const longest = ofBytes(directory, 492);
  DataDirLock.acquire(longest).release();
  await (await Database.open(longest)).close();
  expect(readdirSync(longest)).toContain('tandem.db');
  rmSync(longest, { recursive: true });
  symlinkSync(dirname(longest), join(directory, 'link'));
  const before = readdirSync(directory, { recursive: true });
  const name = 492 - Buffer.byteLength(dirname(longest));
  const refused: [string, RegExp][] = [
    [
      ofBytes(directory, 493),
      /^The path of the data directory has 493 bytes, and may have 492 at most: give --data-dir/,
    ],
    [ofBytes(directory, 6000), /has 6000 bytes, and may have 492 at most/],
    [
      join(directory, 'made', 'a'.repeat(256)),
      /^A name in the path of the data directory has 256 bytes, and may have 255/,
    ],
    [join(directory, 'link', 'a'.repeat(name)), /^The path of the data directory, its links followed, has 493 bytes/],
  ];
  for (const [path, message] of refused) {
    expect(() => DataDirLock.acquire(path)).toThrow(message);
    await expect(Database.open(path)).rejects.toThrow(message);
  }
  expect(readdirSync(directory, { recursive: true })).toEqual(before);
});

test('one holder of a data directory; releasing frees it', () => {
  const lock = DataDirLock.acquire(directory);
  expect(() => DataDirLock.acquire(directory)).toThrow(/Another server is using the data directory/);
  lock.release();
  lock.release();
  DataDirLock.acquire(directory).release();
});
