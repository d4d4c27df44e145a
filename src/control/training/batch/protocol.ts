/** Messages between the thread that prepares a batch and the rest. Trajectories go by path, rows come by transfer: neither is copied. */
import type { RowRoom } from '../../engine/training.ts';
import type { OpenChat } from '../../sessions/open-chat.ts';
import type { SessionErrorCode } from '../../sessions/session.ts';
import type { RlRow, RlStats } from '../rl-batch.ts';
import type { RlConfig } from '../rl-config.ts';

export interface BatchTask {
  /** Compressed groups, one per line. */
  file: string;
  config: RlConfig;
  room: RowRoom;
  seed: string;
}

/** The thread's `workerData`: the task, and what is constant of the chat's encoder. */
export interface BatchSettings extends BatchTask {
  maxModelLen: number;
  chatTemplate: string | null;
}

/** An error that has a meaning on the other side. */
export type CarriedError =
  | { kind: 'input'; field: string; message: string }
  | { kind: 'failed'; message: string }
  | { kind: 'session'; code: SessionErrorCode; message: string; param: string | null }
  | { kind: 'other'; message: string; code: string | null };

export type ToBatchThread =
  | { type: 'encoded'; id: number; ids: Int32Array }
  | { type: 'refused'; id: number; error: CarriedError }
  /** The last rows have been taken. */
  | { type: 'more' };

export type FromBatchThread =
  | { type: 'chat'; id: number; chat: OpenChat }
  | { type: 'text'; id: number; text: string }
  /** Some more of the rows, in order; `more` asks for the next. */
  | { type: 'rows'; rows: RlRow[] }
  | { type: 'done'; stats: RlStats }
  | { type: 'failed'; error: CarriedError };
