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

  /** What is in the file is not what was written. */
  get damaged(): boolean {
    return /^SQLITE_(?:CORRUPT|NOTADB)/.test(this.code ?? '');
  }
}

/** SQLite itself names no file, and calls a disk a failing one that has no room for the file of its shared memory. */
function explained({ message, code }: { message: string; code: string | null }, path: string): SqliteError {
  const error = new SqliteError(message, code);
  if (error.damaged) return new SqliteError(`The database ${path} is damaged: ${message}`, code);
  return code === 'SQLITE_IOERR_SHMSIZE' ? new SqliteError('database or disk is full', 'SQLITE_FULL') : error;
}

interface Waiting {
  resolve: (result: QueryResult<never>) => void;
  reject: (error: Error) => void;
}

export class SqliteClient implements DatabaseConnection {
  readonly #worker: Worker;
  readonly #path: string;
  readonly #waiting = new Map<number, Waiting>();
  readonly #ended: Promise<void>;
  #turn: Promise<void> = Promise.resolve();
  #nextId = 0;
  #closed = false;

  constructor(options: SqliteOptions) {
    this.#path = options.path;
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

  /** Resolves when nobody else has the connection; whoever has it calls what it resolves with. First come first served. */
  async acquire(): Promise<() => void> {
    const before = this.#turn;
    let release: () => void = () => undefined;
    this.#turn = new Promise((resolve) => (release = resolve));
    await before;
    return release;
  }

  async executeQuery<R>({ sql, parameters }: CompiledQuery): Promise<QueryResult<R>> {
    return this.#ask((id) => ({ id, query: { sql, parameters } }));
  }

  /** All or none, in one message: a transaction in which no query needs another's result. */
  async transact(queries: readonly CompiledQuery[]): Promise<void> {
    const release = await this.acquire();
    const transaction = queries.map(({ sql, parameters }) => ({ sql, parameters }));
    const done = this.#ask((id) => ({ id, transaction }));
    // Whatever is asked from now on comes behind it.
    release();
    await done;
  }

  async #ask<R>(request: (id: number) => SqliteRequest): Promise<QueryResult<R>> {
    if (this.#closed) throw new Error('The database is closed.');
    const id = this.#nextId++;
    return new Promise<QueryResult<R>>((resolve, reject) => {
      // The event loop stays alive while an answer is due.
      if (this.#waiting.size === 0) this.#worker.ref();
      this.#waiting.set(id, { resolve, reject });
      this.#worker.postMessage(request(id));
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
      waiting.reject(explained(reply.error, this.#path));
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
  #release: () => void = () => undefined;

  constructor(client: SqliteClient) {
    this.#client = client;
  }

  init(): Promise<void> {
    return Promise.resolve();
  }

  async acquireConnection(): Promise<DatabaseConnection> {
    this.#release = await this.#client.acquire();
    return this.#client;
  }

  releaseConnection(): Promise<void> {
    this.#release();
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
