/** Thread entry: reads, checks and compresses what clients send to training. */
import { parentPort, workerData } from 'node:worker_threads';
import { ValidationError } from '../../../schemas/validation-error.ts';
import { ChatCheck } from './chat-check.ts';
import type { FromWorker, IntakeResult, IntakeSettings, IntakeTask, ToWorker } from './protocol.ts';
import { readRows } from './read-rows.ts';
import { readTrajectories, type FindSamples } from './read-trajectories.ts';

const port = parentPort;
if (!port) throw new Error('intake-worker is not an entry of its own.');
const settings = workerData as IntakeSettings;

type Answer = Exclude<ToWorker, { type: 'task' }>;
/** A task asks one thing at a time. */
const asked = new Map<number, (answer: Answer) => void>();

function tell(message: FromWorker): void {
  port?.postMessage(message);
}

function ask<Type extends Answer['type']>(question: FromWorker & { id: number }) {
  return new Promise<Extract<Answer, { type: Type }>>((resolve) => {
    asked.set(question.id, (answer) => resolve(answer as Extract<Answer, { type: Type }>));
    tell(question);
  });
}

function work(id: number, task: IntakeTask, entity: string): Promise<IntakeResult> {
  const chats = new ChatCheck(async (chat) => {
    const { refusal, failed } = await ask<'rendered'>({ type: 'render', id, chat });
    if (failed !== null) throw new Error(failed);
    return refusal;
  });
  if (task.kind === 'rows') return readRows(task.source, task.target, settings, chats);
  const find: FindSamples = async (requestIds) =>
    (await ask<'samples'>({ type: 'find', id, entity, requestIds })).found;
  return readTrajectories(task, settings, find, chats);
}

async function run(id: number, task: IntakeTask, entity: string): Promise<void> {
  try {
    tell({ type: 'done', id, result: await work(id, task, entity) });
  } catch (error) {
    if (error instanceof ValidationError) {
      tell({ type: 'invalid', id, details: error.details });
      return;
    }
    const { message, code } = error as { message?: unknown; code?: unknown };
    tell({ type: 'failed', id, message: String(message), code: typeof code === 'string' ? code : null });
  }
}

port.on('message', (message: ToWorker) => {
  if (message.type === 'task') {
    void run(message.id, message.task, message.entity);
    return;
  }
  const answer = asked.get(message.id);
  asked.delete(message.id);
  answer?.(message);
});
