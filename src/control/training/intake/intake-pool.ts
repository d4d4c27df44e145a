/**
 * One thread that reads what clients send to training, one task at a time; others wait, entities in turn. A thread that dies fails its
 * task alone.
 */
import { Worker } from 'node:worker_threads';
import { ValidationError } from '../../../schemas/validation-error.ts';
import type { ChatEncoder, OpenChat } from '../../sessions/open-chat.ts';
import { SessionError } from '../../sessions/session.ts';
import type { SampledTokens } from '../fill-samples.ts';
import { patient } from '../patient-chat.ts';
import { ServiceError } from '../service-error.ts';
import { Turns } from '../../turns.ts';
import { workerFile } from '../../worker-file.ts';
import type { FromWorker, IntakeResult, IntakeSettings, IntakeTask, ToWorker } from './protocol.ts';

/** Tasks that may wait: whoever was let in to upload. */
const MAX_WAITING = 256;
/** One group is parsed and written again: a few times its bytes. */
const MAX_HEAP_MB = 2048;

/** Before a full queue for rendering is asked again. */
const RETRY_MS = 1000;

/** What is remembered of a completion, one entry per choice; null: never known, forgotten or another entity's. */
export type SampleSource = (requestId: string, entity: string) => (SampledTokens | null)[] | null;

interface Job {
  id: number;
  task: IntakeTask;
  entity: string;
  resolve: (result: IntakeResult) => void;
  reject: (error: unknown) => void;
}

export class IntakePool {
  readonly #settings: IntakeSettings;
  readonly #samples: SampleSource;
  readonly #chat: ChatEncoder;
  readonly #closing = new AbortController();
  readonly #waiting = new Turns<Job>(MAX_WAITING);
  #worker: Worker | null = null;
  #running: Job | null = null;
  #nextId = 0;

  /** `chat` renders what jobs will train on. */
  constructor(settings: Omit<IntakeSettings, 'chatTemplate'>, samples: SampleSource, chat: ChatEncoder) {
    this.#settings = { ...settings, chatTemplate: chat.chatTemplate };
    this.#samples = samples;
    this.#chat = patient(chat, RETRY_MS, this.#closing.signal);
  }

  get #closed(): boolean {
    return this.#closing.signal.aborted;
  }

  /** Rejects with ValidationError, ServiceError or what the file system said. */
  run<Task extends IntakeTask>(task: Task, entity: string): Promise<Extract<IntakeResult, { kind: Task['kind'] }>> {
    if (this.#closed) return Promise.reject(new ServiceError('unavailable', 'The server is shutting down.'));
    return new Promise<IntakeResult>((resolve, reject) => {
      if (this.#waiting.push(entity, { id: this.#nextId++, task, entity, resolve, reject })) return this.#dispatch();
      reject(new ServiceError('unavailable', 'Too many uploads at once; try again.'));
    }) as Promise<Extract<IntakeResult, { kind: Task['kind'] }>>;
  }

  async close(): Promise<void> {
    this.#closing.abort();
    const worker = this.#worker;
    this.#worker = null;
    const error = new ServiceError('unavailable', 'The server is shutting down.');
    for (const job of [this.#running, ...this.#waiting.takeAll()]) job?.reject(error);
    this.#running = null;
    await worker?.terminate();
  }

  #dispatch(): void {
    if (this.#running !== null || this.#closed) return;
    const job = this.#waiting.take();
    if (job === undefined) return;
    try {
      this.#worker ??= this.#spawn();
    } catch (error) {
      // No thread is to be had, for want of memory or of its file. Whoever comes next asks again.
      job.reject(error);
      this.#dispatch();
      return;
    }
    this.#running = job;
    this.#worker.ref();
    this.#tell({ type: 'task', id: job.id, task: job.task, entity: job.entity });
  }

  #tell(message: ToWorker): void {
    this.#worker?.postMessage(message);
  }

  #spawn(): Worker {
    const worker = new Worker(workerFile('training/intake/intake-worker'), {
      workerData: this.#settings,
      resourceLimits: { maxOldGenerationSizeMb: MAX_HEAP_MB },
    });
    worker.on('message', (message: FromWorker) => this.#receive(message));
    worker.on('error', (error) => this.#lost(worker, error));
    worker.on('exit', () => this.#lost(worker, new Error('The thread that reads bodies has ended.')));
    return worker;
  }

  #receive(message: FromWorker): void {
    if (message.type === 'find') {
      const found = new Map(
        message.requestIds.map((requestId) => [requestId, this.#samples(requestId, message.entity) ?? []]),
      );
      this.#tell({ type: 'samples', id: message.id, found });
      return;
    }
    if (message.type === 'render') {
      void this.#render(message.id, message.chat);
      return;
    }
    const job = this.#running;
    if (job === null || job.id !== message.id) return;
    this.#running = null;
    this.#worker?.unref();
    if (message.type === 'done') job.resolve(message.result);
    else if (message.type === 'invalid') job.reject(new ValidationError(message.details));
    else job.reject(Object.assign(new Error(message.message), { code: message.code }));
    this.#dispatch();
  }

  async #render(id: number, chat: OpenChat): Promise<void> {
    const tell = (refusal: string | null, failed: string | null = null) =>
      this.#tell({ type: 'rendered', id, refusal, failed });
    try {
      await this.#chat.encodeChat(chat);
      tell(null);
    } catch (error) {
      const code = error instanceof SessionError ? error.code : null;
      const message = error instanceof Error ? error.message : String(error);
      // What is too long is dropped by the job.
      if (code === 'context_length') tell(null);
      else if (code === 'bad_request') tell(message);
      else tell(null, message);
    }
  }

  #lost(worker: Worker, error: Error & { code?: unknown }): void {
    if (this.#worker !== worker) return;
    this.#worker = null;
    const job = this.#running;
    this.#running = null;
    const full = error.code === 'ERR_WORKER_OUT_OF_MEMORY';
    job?.reject(
      full ? new ServiceError('too_large', 'The body took too much memory to read: send smaller groups.') : error,
    );
    this.#dispatch();
  }
}
