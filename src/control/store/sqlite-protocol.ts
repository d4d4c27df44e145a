/** Messages between the thread that holds the connection and the rest. */
export interface SqliteOptions {
  path: string;
  /** Another process (the keys command beside a server) may hold the write lock for a moment. */
  busyTimeoutMs: number;
}

export interface SqliteRequest {
  id: number;
  sql: string;
  parameters: readonly unknown[];
}

export type SqliteReply =
  | { id: number; rows: unknown[]; changes: number | null; insertId: bigint | null }
  | { id: number; error: { message: string; code: string | null } };
