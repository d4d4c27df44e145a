/** Messages between the render pool and its threads. To a thread go RenderInputs, one at a time. */
import type { SessionErrorCode } from './session.ts';

export interface WorkerSettings {
  modelPath: string;
  maxModelLen: number;
}

export type WorkerReply =
  | { type: 'ready' }
  | { type: 'failed'; file: string | null; message: string }
  | { type: 'done'; ids: Int32Array }
  | { type: 'refused'; code: SessionErrorCode; message: string; param: string | null }
  | { type: 'crashed'; message: string };
