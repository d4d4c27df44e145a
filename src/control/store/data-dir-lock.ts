/**
 * One server per data directory. The lock is a transaction held open on a SQLite file of its own, so the operating system
 * releases it whatever way the process ends.
 */
import { mkdirSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import SqliteDatabase from 'better-sqlite3';

export class DataDirLock {
  readonly #sqlite: SqliteDatabase.Database;

  private constructor(sqlite: SqliteDatabase.Database) {
    this.#sqlite = sqlite;
  }

  static acquire(dataDir: string): DataDirLock {
    try {
      makeFolder(resolve(dataDir));
    } catch (error) {
      throw new Error(`The data directory ${dataDir} cannot be made: ${(error as Error).message}`);
    }
    const sqlite = new SqliteDatabase(join(dataDir, 'server.lock'), { timeout: 0 });
    try {
      sqlite.exec('BEGIN EXCLUSIVE');
    } catch (error) {
      sqlite.close();
      if ((error as { code?: unknown }).code !== 'SQLITE_BUSY') throw error;
      throw new Error(
        `Another server is using the data directory ${dataDir}: stop it, or give --data-dir another folder.`,
      );
    }
    return new DataDirLock(sqlite);
  }

  /** Idempotent. */
  release(): void {
    this.#sqlite.close();
  }
}

/** With its parents. Not `recursive`, which never returns where a file system has no place for folders (/proc). */
function makeFolder(path: string): void {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return;
  if (dirname(path) !== path) makeFolder(dirname(path));
  mkdirSync(path, { mode: 0o700 });
}
