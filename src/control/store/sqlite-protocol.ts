/** Messages between the thread that holds the connection and the rest. */
export interface SqliteOptions {
  path: string;
  /** Another process (the keys command beside a server) may hold the write lock for a moment. */
  busyTimeoutMs: number;
}

export interface SqliteQuery {
  sql: string;
  parameters: readonly unknown[];
}

/** `transaction`: all or none of them, and nothing else between; answered without rows. */
export type SqliteRequest = { id: number; query: SqliteQuery } | { id: number; transaction: SqliteQuery[] };

export type SqliteReply =
  | { id: number; rows: unknown[]; changes: number | null; insertId: bigint | null }
  | { id: number; error: { message: string; code: string | null } };
