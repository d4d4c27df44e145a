/** A thread that reads what clients send to training. Tasks wait for it, entities in turn. */
import { Worker } from 'node:worker_threads';
import { ValidationError } from '../../../schemas/validation-error.ts';
import type { ChatEncoder, OpenChat } from '../../sessions/open-chat.ts';
import { SessionError } from '../../sessions/session.ts';
import type { SampledTokens } from '../fill-samples.ts';
import { ServiceError } from '../service-error.ts';
import { Turns } from '../../turns.ts';
import { workerFile } from '../../worker-file.ts';
import type { FromWorker, IntakeResult, IntakeSettings, IntakeTask, ToWorker } from './protocol.ts';

/** Tasks that may wait: whoever was let in to upload. */
const MAX_WAITING = 256;
/** One group is parsed and written again: a few times its bytes. */
const MAX_HEAP_MB = 2048;

/** What is remembered of a completion, one entry per choice; null: never known, forgotten or another entity's. */
export type SampleSource = (requestId: string, entity: string) => (SampledTokens | null)[] | null;

interface Job {
  id: number;
  task: IntakeTask;
  entity: string;
  resolve: (result: IntakeResult) => void;
  reject: (error: unknown) => void;
}

export interface IntakeThreadParts {
  settings: IntakeSettings;
  samples: SampleSource;
  /** Renders what jobs will train on. */
  chat: Pick<ChatEncoder, 'encodeChat'>;
  /** Tasks that are read in turn, piece by piece, each of another entity; they share the thread's memory. */
  atOnce: number;
}

export class IntakeThread {
  readonly #parts: IntakeThreadParts;
  readonly #waiting = new Turns<Job>(MAX_WAITING);
  /** By id. */
  readonly #running = new Map<number, Job>();
  #worker: Worker | null = null;
  #closed = false;
  #nextId = 0;

  constructor(parts: IntakeThreadParts) {
    this.#parts = parts;
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
    this.#closed = true;
    const worker = this.#worker;
    this.#worker = null;
    const error = new ServiceError('unavailable', 'The server is shutting down.');
    for (const job of [...this.#running.values(), ...this.#waiting.takeAll()]) job.reject(error);
    this.#running.clear();
    await worker?.terminate();
  }

  #dispatch(): void {
    while (!this.#closed && this.#running.size < this.#parts.atOnce) {
      const entities = new Set([...this.#running.values()].map(({ entity }) => entity));
      const job = this.#waiting.take((entity) => !entities.has(entity));
      if (job === undefined) return;
      this.#begin(job);
    }
  }

  #begin(job: Job): void {
    try {
      this.#worker ??= this.#spawn();
    } catch (error) {
      // No thread is to be had, for want of memory or of its file. Whoever comes next asks again.
      job.reject(error);
      return;
    }
    this.#running.set(job.id, job);
    this.#worker.ref();
    this.#tell({ type: 'task', id: job.id, task: job.task, entity: job.entity });
  }

  #tell(message: ToWorker): void {
    this.#worker?.postMessage(message);
  }

  #spawn(): Worker {
    const worker = new Worker(workerFile('training/intake/intake-worker'), {
      workerData: this.#parts.settings,
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
        message.requestIds.map((requestId) => [requestId, this.#parts.samples(requestId, message.entity) ?? []]),
      );
      this.#tell({ type: 'samples', id: message.id, found });
      return;
    }
    if (message.type === 'render') {
      void this.#render(message.id, message.chat);
      return;
    }
    const job = this.#running.get(message.id);
    if (!job) return;
    this.#running.delete(message.id);
    if (this.#running.size === 0) this.#worker?.unref();
    if (message.type === 'done') job.resolve(message.result);
    else if (message.type === 'invalid') job.reject(new ValidationError(message.details));
    else job.reject(Object.assign(new Error(message.message), { code: message.code }));
    this.#dispatch();
  }

  async #render(id: number, chat: OpenChat): Promise<void> {
    const tell = (refusal: string | null, failed: string | null = null) =>
      this.#tell({ type: 'rendered', id, refusal, failed });
    try {
      await this.#parts.chat.encodeChat(chat);
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
    const jobs = [...this.#running.values()];
    this.#running.clear();
    const full = error.code === 'ERR_WORKER_OUT_OF_MEMORY';
    const told = full
      ? new ServiceError('too_large', 'The body took too much memory to read: send smaller groups.')
      : error;
    for (const job of jobs) job.reject(told);
    this.#dispatch();
  }
}
