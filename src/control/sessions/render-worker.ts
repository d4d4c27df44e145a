/** Thread entry: renders and tokenises one prompt at a time. The pool kills the thread when a job takes too long. */
import { parentPort, workerData } from 'node:worker_threads';
import { ModelError } from '../models/errors.ts';
import { loadPromptRenderer } from './load-renderer.ts';
import type { PromptRenderer, RenderInput } from './prompt-renderer.ts';
import { SessionError } from './session.ts';
import type { WorkerReply, WorkerSettings } from './worker-protocol.ts';

const port = parentPort;
if (!port) throw new Error('render-worker is not an entry of its own.');

function reply(message: WorkerReply): void {
  const transfer = message.type === 'done' ? [message.ids.buffer as ArrayBuffer] : [];
  port?.postMessage(message, transfer);
}

function run(renderer: PromptRenderer, input: RenderInput): WorkerReply {
  try {
    return { type: 'done', ids: renderer.render(input).ids };
  } catch (error) {
    if (error instanceof SessionError)
      return { type: 'refused', code: error.code, message: error.message, param: error.param };
    if (error instanceof RangeError) {
      return {
        type: 'refused',
        code: 'bad_request',
        message: 'The prompt is nested too deeply or grows too long.',
        param: null,
      };
    }
    return { type: 'crashed', message: error instanceof Error ? error.message : 'unknown error' };
  }
}

try {
  const renderer = await loadPromptRenderer(workerData as WorkerSettings);
  port.on('message', (input: RenderInput) => reply(run(renderer, input)));
  reply({ type: 'ready' });
} catch (error) {
  const file = error instanceof ModelError ? error.file : null;
  reply({ type: 'failed', file, message: error instanceof Error ? error.message : 'unknown error' });
}
