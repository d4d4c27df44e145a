/** Opens a database, and says what to do where better-sqlite3's own code is not there for the Node.js that runs. */
import SqliteDatabase from 'better-sqlite3';
import { setupCommand } from '../setup-command.ts';

/** Throws NotBuiltError, or what SQLite says. */
export function openSqlite(path: string, timeout: number): SqliteDatabase.Database {
  try {
    return new SqliteDatabase(path, { timeout });
  } catch (error) {
    throw isNotBuilt(error) ? new NotBuiltError(error) : error;
  }
}

export class NotBuiltError extends Error {
  constructor(cause: unknown) {
    super(`better-sqlite3 is not built for Node.js ${process.version}: with this Node.js, run ${setupCommand()}.`, {
      cause,
    });
  }
}

/** It is loaded with the first database. Built for another Node.js it cannot be; where it was not built, no file of it is found. */
function isNotBuilt(error: unknown): boolean {
  const { code, message } = error as { code?: unknown; message?: unknown };
  return code === 'ERR_DLOPEN_FAILED' || String(message).startsWith('Could not locate the bindings file');
}
