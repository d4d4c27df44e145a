/** Kysely's dialect over the SQLite thread: one connection, one transaction at a time, first come first served. */
import { Worker } from 'node:worker_threads';
import {
  CompiledQuery,
  SqliteAdapter,
  SqliteIntrospector,
  SqliteQueryCompiler,
  type DatabaseConnection,
  type Dialect,
  type Driver,
  type Kysely,
  type QueryResult,
} from 'kysely';
import { workerFile } from '../worker-file.ts';
import type { SqliteOptions, SqliteReply, SqliteRequest } from './sqlite-protocol.ts';

/** What SQLite said; `code` is its name, such as SQLITE_CONSTRAINT_UNIQUE or SQLITE_FULL. */
export class SqliteError extends Error {
  readonly code: string | null;
  constructor(message: string, code: string | null) {
    super(message);
    this.name = 'SqliteError';
    this.code = code;
  }
}

interface Waiting {
  resolve: (result: QueryResult<never>) => void;
  reject: (error: Error) => void;
}

export class SqliteClient implements DatabaseConnection {
  readonly #worker: Worker;
  readonly #waiting = new Map<number, Waiting>();
  readonly #ended: Promise<void>;
  #nextId = 0;
  #closed = false;

  constructor(options: SqliteOptions) {
    this.#worker = new Worker(workerFile('store/sqlite-worker'), { workerData: options });
    this.#worker.unref();
    this.#worker.on('message', (reply: SqliteReply) => this.#receive(reply));
    this.#worker.on('error', (error) => this.#fail(error));
    this.#ended = new Promise((resolve) => {
      this.#worker.once('exit', () => {
        this.#fail(new Error('The database is closed.'));
        resolve();
      });
    });
  }

  async executeQuery<R>(query: CompiledQuery): Promise<QueryResult<R>> {
    if (this.#closed) throw new Error('The database is closed.');
    const id = this.#nextId++;
    const request: SqliteRequest = { id, sql: query.sql, parameters: query.parameters };
    return new Promise<QueryResult<R>>((resolve, reject) => {
      // The event loop stays alive while an answer is due.
      if (this.#waiting.size === 0) this.#worker.ref();
      this.#waiting.set(id, { resolve, reject });
      this.#worker.postMessage(request);
    });
  }

  streamQuery<R>(): AsyncIterableIterator<QueryResult<R>> {
    throw new Error('The SQLite thread answers whole results; page them.');
  }

  async close(): Promise<void> {
    if (!this.#closed) {
      this.#closed = true;
      this.#worker.ref();
      this.#worker.postMessage('close');
    }
    await this.#ended;
  }

  #receive(reply: SqliteReply): void {
    const waiting = this.#waiting.get(reply.id);
    this.#waiting.delete(reply.id);
    if (this.#waiting.size === 0 && !this.#closed) this.#worker.unref();
    if (waiting === undefined) return;
    if ('error' in reply) {
      waiting.reject(new SqliteError(reply.error.message, reply.error.code));
      return;
    }
    waiting.resolve({
      rows: reply.rows as never[],
      ...(reply.changes === null ? {} : { numAffectedRows: BigInt(reply.changes) }),
      ...(reply.insertId === null ? {} : { insertId: reply.insertId }),
    });
  }

  #fail(error: Error): void {
    this.#closed = true;
    for (const waiting of this.#waiting.values()) waiting.reject(error);
    this.#waiting.clear();
  }
}

class SqliteThreadDriver implements Driver {
  readonly #client: SqliteClient;
  #turn: Promise<void> = Promise.resolve();
  #endTurn: () => void = () => undefined;

  constructor(client: SqliteClient) {
    this.#client = client;
  }

  init(): Promise<void> {
    return Promise.resolve();
  }

  async acquireConnection(): Promise<DatabaseConnection> {
    const before = this.#turn;
    let end: () => void = () => undefined;
    this.#turn = new Promise((resolve) => (end = resolve));
    await before;
    this.#endTurn = end;
    return this.#client;
  }

  releaseConnection(): Promise<void> {
    this.#endTurn();
    return Promise.resolve();
  }

  /** IMMEDIATE: the write lock is taken at once, so a transaction that read cannot fail when it begins to write. */
  async beginTransaction(connection: DatabaseConnection): Promise<void> {
    await connection.executeQuery(CompiledQuery.raw('begin immediate'));
  }

  async commitTransaction(connection: DatabaseConnection): Promise<void> {
    await connection.executeQuery(CompiledQuery.raw('commit'));
  }

  async rollbackTransaction(connection: DatabaseConnection): Promise<void> {
    try {
      await connection.executeQuery(CompiledQuery.raw('rollback'));
    } catch (error) {
      // A full disk has rolled back by itself; the error of the statement is the one to tell.
      if (!(error instanceof SqliteError) || !error.message.includes('no transaction is active')) throw error;
    }
  }

  destroy(): Promise<void> {
    return this.#client.close();
  }
}

/** All migrations are one transaction: one that a kill cuts off leaves nothing behind that the next start would stumble over. */
class SqliteThreadAdapter extends SqliteAdapter {
  override get supportsTransactionalDdl(): boolean {
    return true;
  }
}

export function sqliteThreadDialect(client: SqliteClient): Dialect {
  return {
    createAdapter: () => new SqliteThreadAdapter(),
    createDriver: () => new SqliteThreadDriver(client),
    createIntrospector: (db: Kysely<unknown>) => new SqliteIntrospector(db),
    createQueryCompiler: () => new SqliteQueryCompiler(),
  };
}
