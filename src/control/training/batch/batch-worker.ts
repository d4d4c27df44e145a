/** Thread entry: reads a job's trajectories, tokenises and packs them, hands the rows over and ends. */
import { parentPort, workerData } from 'node:worker_threads';
import type { ChatEncoder } from '../../sessions/open-chat.ts';
import { readGroups } from '../intake/content.ts';
import { rlBatch, type RlRow } from '../rl-batch.ts';
import { carry, uncarry } from './carried-error.ts';
import type { BatchSettings, FromBatchThread, ToBatchThread } from './protocol.ts';

/** Of one message: it is taken in within milliseconds. */
const ROWS_AT_ONCE = 128;

const port = parentPort;
if (!port) throw new Error('batch-worker is not an entry of its own.');
const { file, config, room, seed, maxModelLen, chatTemplate } = workerData as BatchSettings;

interface Asked {
  resolve: (ids: Int32Array) => void;
  reject: (error: Error) => void;
}

const asked = new Map<number, Asked>();
let nextId = 0;
let goOn: () => void = () => undefined;

function tell(message: FromBatchThread, transfer: ArrayBuffer[] = []): void {
  port?.postMessage(message, transfer);
}

function ask(message: (id: number) => FromBatchThread): Promise<Int32Array> {
  return new Promise((resolve, reject) => {
    const id = nextId++;
    asked.set(id, { resolve, reject });
    tell(message(id));
  });
}

const chat: ChatEncoder = {
  maxModelLen,
  chatTemplate,
  encodeChat: (open) => ask((id) => ({ type: 'chat', id, chat: open })),
  encodeText: (text) => ask((id) => ({ type: 'text', id, text })),
};

port.on('message', (message: ToBatchThread) => {
  if (message.type === 'more') {
    goOn();
    return;
  }
  const waiting = asked.get(message.id);
  asked.delete(message.id);
  if (message.type === 'encoded') waiting?.resolve(message.ids);
  else waiting?.reject(uncarry(message.error));
});

function buffersOf({ packed, advantages, weights, oldLogprobs }: RlRow): ArrayBuffer[] {
  const { row, at, member } = packed;
  const arrays = [row.tokens, row.segments, row.targets, at, member, advantages, weights, oldLogprobs];
  return arrays.map(({ buffer }) => buffer as ArrayBuffer);
}

async function hand(rows: readonly RlRow[]): Promise<void> {
  for (let from = 0; from < rows.length; from += ROWS_AT_ONCE) {
    const some = rows.slice(from, from + ROWS_AT_ONCE);
    const taken = new Promise<void>((resolve) => (goOn = resolve));
    tell({ type: 'rows', rows: some }, some.flatMap(buffersOf));
    await taken;
  }
}

try {
  const { rows, stats } = await rlBatch(readGroups(file), config, chat, seed, room);
  await hand(rows);
  tell({ type: 'done', stats });
} catch (error) {
  tell({ type: 'failed', error: carry(error) });
}
