/**
 * One server per data directory. The lock is a transaction held open on a SQLite file of its own, so the operating system
 * releases it whatever way the process ends.
 */
import { join } from 'node:path';
import SqliteDatabase from 'better-sqlite3';
import { makeDataDir } from './data-dir.ts';

export class DataDirLock {
  readonly #sqlite: SqliteDatabase.Database;

  private constructor(sqlite: SqliteDatabase.Database) {
    this.#sqlite = sqlite;
  }

  static acquire(dataDir: string): DataDirLock {
    makeDataDir(dataDir);
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
