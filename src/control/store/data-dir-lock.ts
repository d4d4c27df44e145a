/**
 * One server per data directory. The lock is a transaction held open on a SQLite file of its own, so the operating system
 * releases it whatever way the process ends.
 */
import { join } from 'node:path';
import type SqliteDatabase from 'better-sqlite3';
import { makeDataDir, makeOwnFile } from './data-dir.ts';
import { NotBuiltError, openSqlite } from './open-sqlite.ts';

export class DataDirLock {
  readonly #sqlite: SqliteDatabase.Database;

  private constructor(sqlite: SqliteDatabase.Database) {
    this.#sqlite = sqlite;
  }

  static acquire(dataDir: string): DataDirLock {
    const lock = DataDirLock.tryAcquire(dataDir);
    if (lock !== null) return lock;
    throw new Error(
      `Another server is using the data directory ${dataDir}: stop it, or give --data-dir another folder.`,
    );
  }

  /** null where another process has it. */
  static tryAcquire(dataDir: string): DataDirLock | null {
    makeDataDir(dataDir);
    const path = join(dataDir, 'server.lock');
    const sqlite = openLock(path);
    try {
      sqlite.exec('BEGIN EXCLUSIVE');
    } catch (error) {
      sqlite.close();
      if ((error as { code?: unknown }).code !== 'SQLITE_BUSY') throw unusable(path, 'locked', error);
      return null;
    }
    return new DataDirLock(sqlite);
  }

  /** Idempotent. */
  release(): void {
    this.#sqlite.close();
  }
}

function openLock(path: string): SqliteDatabase.Database {
  // SQLite falls back to reading a file that it must not write, and whoever reads alone locks out nobody.
  makeOwnFile(path);
  try {
    return openSqlite(path, 0);
  } catch (error) {
    throw error instanceof NotBuiltError ? error : unusable(path, 'opened for writing', error);
  }
}

/** SQLite itself names no file. */
function unusable(path: string, what: string, error: unknown): Error {
  return new Error(`${path} in the data directory cannot be ${what}: ${(error as Error).message}`);
}
