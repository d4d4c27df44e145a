/** Opens the database of a data directory and brings it to the newest schema. SQL runs on a thread of its own. */
import { accessSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Kysely, Migrator, sql, type CompiledQuery } from 'kysely';
import { DataDirLock } from './data-dir-lock.ts';
import { makeDataDir, makeOwnFile } from './data-dir.ts';
import { holdsObjects } from './blob-store.ts';
import { MIGRATIONS } from './migrations/list.ts';
import { SqliteClient, SqliteError, sqliteThreadDialect } from './sqlite-client.ts';
import type { Tables } from './tables.ts';

const FILE = 'tandem.db';
/** Folder of the files that the database names. */
export const BLOBS = 'blobs';
const BUSY_TIMEOUT_MS = 5_000;
/** For a server that has just been started to bring its data up to date. */
const START_MS = 5_000;
const LOCK_RETRY_MS = 100;

export class Database {
  readonly db: Kysely<Tables>;
  readonly #client: SqliteClient;
  readonly #path: string;

  private constructor(path: string) {
    const client = new SqliteClient({ path, busyTimeoutMs: BUSY_TIMEOUT_MS });
    this.#client = client;
    this.#path = path;
    this.db = new Kysely<Tables>({ dialect: sqliteThreadDialect(client) });
  }

  /** Also where another user's folder does not show it: whoever opens it then is told so. */
  static exists(dataDir: string): boolean {
    try {
      accessSync(join(dataDir, FILE));
      return true;
    } catch (error) {
      return (error as NodeJS.ErrnoException).code === 'EACCES';
    }
  }

  /** For the server, which holds the directory's lock. */
  static open(dataDir: string): Promise<Database> {
    return Database.#open(dataDir, (database) => database.#migrate());
  }

  /** For everybody else: a server of an older version that runs keeps the schema that it knows. */
  static openBeside(dataDir: string, waitMs = START_MS): Promise<Database> {
    return Database.#open(dataDir, async (database) => {
      const lock = await database.#lockToChange(dataDir, waitMs);
      try {
        await database.#migrate();
      } finally {
        lock?.release();
      }
    });
  }

  static async #open(dataDir: string, migrate: (database: Database) => Promise<void>): Promise<Database> {
    makeDataDir(dataDir);
    const path = join(dataDir, FILE);
    refuseWithoutDatabase(path, join(dataDir, BLOBS));
    makeOwnFile(path);
    const database = new Database(path);
    try {
      await migrate(database);
    } catch (error) {
      await database.close();
      throw error instanceof SqliteError && !error.damaged ? database.#unopened(error.message) : error;
    }
    return database;
  }

  /** All queries or none, in one round trip to the thread. */
  transact(queries: readonly CompiledQuery[]): Promise<void> {
    return this.#client.transact(queries);
  }

  /** Changes when another connection has committed: whoever caches rows reads them again. */
  async dataVersion(): Promise<number> {
    const { rows } = await sql<{ data_version: number }>`pragma data_version`.execute(this.db);
    return rows[0]?.data_version ?? 0;
  }

  /** Idempotent. */
  async close(): Promise<void> {
    await this.db.destroy();
  }

  /** null: there is nothing to change, or nothing yet. A server that has just been started is about to change it itself. */
  async #lockToChange(dataDir: string, waitMs: number): Promise<DataDirLock | null> {
    const end = performance.now() + waitMs;
    while (await this.#isOld()) {
      const lock = DataDirLock.tryAcquire(dataDir);
      if (lock !== null) return lock;
      if (performance.now() > end)
        throw new Error(
          `A server of an older version is using the data directory ${dataDir}, which this version would change: stop it first.`,
        );
      await sleep(LOCK_RETRY_MS);
    }
    return null;
  }

  async #isOld(): Promise<boolean> {
    const migrations = await this.#migrator().getMigrations();
    const made = migrations.filter(({ executedAt }) => executedAt !== undefined).length;
    return made > 0 && made < migrations.length;
  }

  #migrator(): Migrator {
    return new Migrator({ db: this.db, provider: { getMigrations: () => Promise.resolve({ ...MIGRATIONS }) } });
  }

  async #migrate(): Promise<void> {
    const { error } = await this.#migrator().migrateToLatest();
    if (error === undefined) return;
    if (error instanceof SqliteError) throw error;
    const reason = error instanceof Error ? error.message : JSON.stringify(error);
    const later = /previously executed migration (\S+) is missing/.exec(reason)?.[1];
    if (later !== undefined) {
      throw new Error(
        `A newer version has used the data directory (${later}): start that one, or give --data-dir another folder.`,
      );
    }
    throw this.#unopened(reason);
  }

  #unopened(reason: string): Error {
    return new Error(`The database ${this.#path} could not be opened or brought up to date: ${reason}`);
  }
}

/** A new database would name none of the files that are there, and the server would remove them all. */
function refuseWithoutDatabase(path: string, blobs: string): void {
  const what = absence(path);
  if (what === null || !holdsObjects(blobs)) return;
  throw new Error(
    `The database ${path} is ${what}, but files of models, jobs or artifacts lie in ${blobs}: put the ` +
      'database back, from a copy of the data directory, or remove that folder to begin anew.',
  );
}

/** null where there is something, or something that only whoever opens it is told of. */
function absence(path: string): 'missing' | 'empty' | null {
  try {
    return statSync(path).size === 0 ? 'empty' : null;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ENOENT' ? 'missing' : null;
  }
}
