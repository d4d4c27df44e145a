/** Opens the database of a data directory and brings it to the newest schema. */
import { chmodSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import SqliteDatabase from 'better-sqlite3';
import { Kysely, Migrator, SqliteDialect } from 'kysely';
import { MIGRATIONS } from './migrations/list.ts';
import type { Tables } from './tables.ts';

const FILE = 'tandem.db';
/** Another process (the keys command beside a server) may hold the write lock for a moment. */
const BUSY_TIMEOUT_MS = 5_000;

export class Database {
  readonly db: Kysely<Tables>;
  readonly #sqlite: SqliteDatabase.Database;

  private constructor(sqlite: SqliteDatabase.Database) {
    this.#sqlite = sqlite;
    this.db = new Kysely<Tables>({ dialect: new SqliteDialect({ database: sqlite }) });
  }

  static async open(dataDir: string): Promise<Database> {
    mkdirSync(dataDir, { recursive: true, mode: 0o700 });
    const path = join(dataDir, FILE);
    const sqlite = new SqliteDatabase(path, { timeout: BUSY_TIMEOUT_MS });
    chmodSync(path, 0o600);
    sqlite.pragma('journal_mode = WAL');
    sqlite.pragma('synchronous = FULL');
    sqlite.pragma('foreign_keys = ON');
    const database = new Database(sqlite);
    try {
      await database.#migrate();
    } catch (error) {
      await database.close();
      throw error;
    }
    return database;
  }

  /** Changes when another connection has committed: whoever caches rows reads them again. */
  get dataVersion(): number {
    return this.#sqlite.pragma('data_version', { simple: true }) as number;
  }

  /** Idempotent. */
  async close(): Promise<void> {
    await this.db.destroy();
  }

  async #migrate(): Promise<void> {
    const provider = { getMigrations: () => Promise.resolve({ ...MIGRATIONS }) };
    const { error } = await new Migrator({ db: this.db, provider }).migrateToLatest();
    if (error === undefined) return;
    const reason = error instanceof Error ? error.message : JSON.stringify(error);
    throw new Error(`The database in the data directory could not be brought up to date: ${reason}`);
  }
}
