/** Thread entry: owns one SQLite connection, so that no commit waits for a disk on the thread that streams tokens. */
import { parentPort, workerData } from 'node:worker_threads';
import type SqliteDatabase from 'better-sqlite3';
import { openSqlite } from './open-sqlite.ts';
import type { SqliteOptions, SqliteQuery, SqliteReply, SqliteRequest } from './sqlite-protocol.ts';

const port = parentPort;
if (!port) throw new Error('sqlite-worker is not an entry of its own.');

/** Prepared statements kept; the repositories have fewer. */
const MAX_STATEMENTS = 256;

const options = workerData as SqliteOptions;
const statements = new Map<string, SqliteDatabase.Statement>();
let sqlite: SqliteDatabase.Database | null = null;

/** Opened by the first request, so that a failure has someone to tell. */
function open(): SqliteDatabase.Database {
  if (sqlite !== null) return sqlite;
  const opened = openSqlite(options.path, options.busyTimeoutMs);
  opened.pragma('journal_mode = WAL');
  opened.pragma('synchronous = FULL');
  opened.pragma('foreign_keys = ON');
  sqlite = opened;
  return opened;
}

function prepare(text: string): SqliteDatabase.Statement {
  const known = statements.get(text);
  if (known) return known;
  const statement = open().prepare(text);
  if (statements.size >= MAX_STATEMENTS) statements.clear();
  statements.set(text, statement);
  return statement;
}

type Result = Pick<Exclude<SqliteReply, { error: unknown }>, 'rows' | 'changes' | 'insertId'>;

const NO_RESULT: Result = { rows: [], changes: null, insertId: null };

function run({ sql, parameters }: SqliteQuery): Result {
  const statement = prepare(sql);
  if (statement.reader) return { ...NO_RESULT, rows: statement.all(parameters) };
  const { changes, lastInsertRowid } = statement.run(parameters);
  return { rows: [], changes, insertId: BigInt(lastInsertRowid) };
}

/** IMMEDIATE, as the transactions that are begun from outside. */
function transact(queries: readonly SqliteQuery[]): Result {
  const all = open().transaction(() => {
    for (const query of queries) run(query);
  });
  all.immediate();
  return NO_RESULT;
}

function answer(request: SqliteRequest): SqliteReply {
  const { id } = request;
  try {
    return { id, ...('query' in request ? run(request.query) : transact(request.transaction)) };
  } catch (error) {
    const { message, code } = error as { message?: unknown; code?: unknown };
    return { id, error: { message: String(message), code: typeof code === 'string' ? code : null } };
  }
}

port.on('message', (request: SqliteRequest | 'close') => {
  if (request === 'close') {
    sqlite?.close();
    port.close();
    return;
  }
  port.postMessage(answer(request));
});
