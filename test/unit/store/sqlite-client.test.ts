/** One connection on a thread: transactions take turns, other connections wait, and what fails says what SQLite said. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Worker } from 'node:worker_threads';
import { CompiledQuery, sql, type Kysely } from 'kysely';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Database } from '../../../src/control/store/database.ts';
import { SqliteClient, SqliteError } from '../../../src/control/store/sqlite-client.ts';
import type { Tables } from '../../../src/control/store/tables.ts';

const AT = '2026-01-01T00:00:00.000Z';

let directory: string;
let database: Database;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-sqlite-'));
  database = await Database.open(directory);
});
afterEach(async () => {
  await database.close();
  rmSync(directory, { recursive: true, force: true });
});

const add = (db: Kysely<Tables>, name: string) => db.insertInto('entities').values({ name, created_at: AT }).execute();

async function names(db = database.db): Promise<string[]> {
  return (await db.selectFrom('entities').select('name').orderBy('name').execute()).map(({ name }) => name);
}

/** What it reads decides what it writes. */
const count = (db: Kysely<Tables>, prefix: string) =>
  db.transaction().execute(async (trx) => {
    const before = (await names(trx)).length;
    await add(trx, `${prefix}${before}`);
  });

test('a transaction that fails takes nothing with it that was written beside it', async () => {
  const failing = database.db.transaction().execute(async (trx) => {
    await add(trx, 'inside');
    await new Promise((resolve) => setTimeout(resolve, 20));
    throw new Error('given up');
  });
  const beside = add(database.db, 'beside');
  await expect(failing).rejects.toThrow('given up');
  await beside;
  expect(await names()).toEqual(['beside']);
});

test('transactions of two processes wait for each other, and read what the other wrote', async () => {
  const other = await Database.open(directory);
  try {
    const both = [database.db, other.db];
    await Promise.all(Array.from({ length: 20 }, (_, i) => count(both[i % 2] ?? database.db, 'n')));
    expect((await names()).length).toBe(20);
  } finally {
    await other.close();
  }
});

test('what SQLite refuses is told by its code, also where it has rolled the transaction back by itself', async () => {
  await add(database.db, 'one');
  await expect(add(database.db, 'one')).rejects.toMatchObject({ code: 'SQLITE_CONSTRAINT_PRIMARYKEY' });
  const { rows } = await sql<{ page_count: number }>`pragma page_count`.execute(database.db);
  await sql.raw(`pragma max_page_count = ${(rows[0]?.page_count ?? 0) + 2}`).execute(database.db);
  const full = database.db.transaction().execute(async (trx) => {
    await add(trx, 'two');
    await add(trx, 'x'.repeat(100_000));
  });
  await expect(full).rejects.toThrow(SqliteError);
  await expect(full).rejects.toMatchObject({ code: 'SQLITE_FULL' });
  expect(await names()).toEqual(['one']);
  await add(database.db, 'three');
  expect(await names()).toEqual(['one', 'three']);
});

const added = (name: string) => database.db.insertInto('entities').values({ name, created_at: AT }).compile();

test('queries in one message are all done or none, and tell why', async () => {
  await database.transact([added('one'), added('two')]);
  expect(await names()).toEqual(['one', 'two']);
  const failing = database.transact([added('three'), added('two'), added('four')]);
  await expect(failing).rejects.toMatchObject({ code: 'SQLITE_CONSTRAINT_PRIMARYKEY' });
  expect(await names()).toEqual(['one', 'two']);
  await database.transact([added('three')]);
  expect(await names()).toEqual(['one', 'three', 'two']);
});

test('queries in one message wait for the transaction that is open, and later ones for them', async () => {
  const order: string[] = [];
  const open = database.db.transaction().execute(async (trx) => {
    await add(trx, 'a');
    await new Promise((resolve) => setTimeout(resolve, 20));
    order.push((await names(trx)).join(''));
    throw new Error('given up');
  });
  const both = [database.transact([added('b'), added('c')]), database.transact([added('d')])];
  const later = names().then((found) => order.push(found.join('')));
  await expect(open).rejects.toThrow('given up');
  await Promise.all([...both, later]);
  expect(order).toEqual(['a', 'bcd']);
});

test('queries in one message that find the disk full leave nothing, and the next ones work', async () => {
  const { rows } = await sql<{ page_count: number }>`pragma page_count`.execute(database.db);
  await sql.raw(`pragma max_page_count = ${(rows[0]?.page_count ?? 0) + 2}`).execute(database.db);
  const full = database.transact([added('one'), added('x'.repeat(100_000))]);
  await expect(full).rejects.toMatchObject({ code: 'SQLITE_FULL' });
  expect(await names()).toEqual([]);
  await database.transact([added('two')]);
  expect(await names()).toEqual(['two']);
});

test('what was asked before a close is on the disk, what is asked after it is refused', async () => {
  const pending = Promise.all(Array.from({ length: 5 }, (_, i) => add(database.db, `${i}`)));
  await pending;
  await database.close();
  await database.close();
  await expect(names()).rejects.toThrow();
  // The last one out leaves one file, whole by itself.
  expect(readdirSync(directory)).toEqual(['tandem.db']);
  database = await Database.open(directory);
  expect(await names()).toEqual(['0', '1', '2', '3', '4']);
});

test('a thread that dies fails what was asked of it, and what is asked later', async () => {
  const real = Reflect.get(Worker.prototype, 'postMessage');
  const post = vi.spyOn(Worker.prototype, 'postMessage').mockImplementation(function (this: Worker) {
    // Not a request: the thread ends by an exception.
    real.call(this, null);
  });
  const client = new SqliteClient({ path: join(directory, 'other.db'), busyTimeoutMs: 0 });
  const ask = () => client.executeQuery(CompiledQuery.raw('select 1'));
  try {
    await expect(Promise.all([ask(), ask()])).rejects.toThrow();
  } finally {
    post.mockRestore();
  }
  await expect(ask()).rejects.toThrow('The database is closed.');
  // Its end has been told by now: nothing more will be.
  await client.close();
  await expect(ask()).rejects.toThrow('The database is closed.');
});
