/**
 * The rows of an RL job, made on a thread of their own that ends with them: a gigabyte of trajectories is parsed, tokenised and packed
 * while this thread serves. Chats are rendered where those of requests are.
 */
import { Worker } from 'node:worker_threads';
import type { ChatEncoder } from '../../sessions/open-chat.ts';
import { TrainingFailedError } from '../errors.ts';
import type { RlBatch, RlRow } from '../rl-batch.ts';
import { workerFile } from '../../worker-file.ts';
import { carry, uncarry } from './carried-error.ts';
import type { BatchSettings, BatchTask, FromBatchThread, ToBatchThread } from './protocol.ts';

/** As much as the intake thread has, which has parsed the same groups. */
const MAX_HEAP_MB = 2048;

/** Rejects as `rlBatch` does, and soon after `signal` is aborted. */
export async function threadedBatch(task: BatchTask, chat: ChatEncoder, signal: AbortSignal): Promise<RlBatch> {
  signal.throwIfAborted();
  const { maxModelLen, chatTemplate } = chat;
  const settings: BatchSettings = { ...task, maxModelLen, chatTemplate };
  const resourceLimits = { maxOldGenerationSizeMb: MAX_HEAP_MB };
  const worker = new Worker(workerFile('training/batch/batch-worker'), { workerData: settings, resourceLimits });
  let stop: () => void = () => undefined;
  try {
    return await new Promise<RlBatch>((resolve, reject) => {
      stop = () => reject(new Error('The job stops.'));
      signal.addEventListener('abort', stop, { once: true });
      listen(worker, chat, resolve, reject);
    });
  } finally {
    signal.removeEventListener('abort', stop);
    await worker.terminate();
  }
}

function listen(
  worker: Worker,
  chat: ChatEncoder,
  resolve: (batch: RlBatch) => void,
  reject: (error: Error) => void,
): void {
  const rows: RlRow[] = [];
  const tell = (message: ToBatchThread): void => worker.postMessage(message);
  const answer = (id: number, ids: Promise<Int32Array>): void => {
    ids.then(
      (found) => tell({ type: 'encoded', id, ids: found }),
      (error: unknown) => tell({ type: 'refused', id, error: carry(error) }),
    );
  };
  worker.on('message', (message: FromBatchThread) => {
    if (message.type === 'chat') answer(message.id, chat.encodeChat(message.chat));
    else if (message.type === 'text') answer(message.id, chat.encodeText(message.text));
    else if (message.type === 'failed') reject(uncarry(message.error));
    else if (message.type === 'done') resolve({ rows, stats: message.stats });
    else {
      for (const row of message.rows) rows.push(row);
      tell({ type: 'more' });
    }
  });
  worker.on('error', (error: Error & { code?: unknown }) => {
    const full = error.code === 'ERR_WORKER_OUT_OF_MEMORY';
    reject(full ? new TrainingFailedError('The trajectories take too much memory: send smaller groups.') : error);
  });
  worker.on('exit', () => reject(new Error('The thread that prepares batches has ended.')));
}
