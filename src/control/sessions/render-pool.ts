/**
 * Threads that render and tokenise. Each takes one job at a time, so a job that runs out of time or memory costs its
 * sender an error and the pool one thread's restart; the jobs of others go on, tenants in turn.
 */
import { Worker } from 'node:worker_threads';
import { jsonWeight } from '../json-weight.ts';
import { ModelError } from '../models/errors.ts';
import { SharedBound } from '../shared-bound.ts';
import { Turns } from '../turns.ts';
import { workerFile } from '../worker-file.ts';
import type { RenderInput } from './prompt-renderer.ts';
import { SessionError } from './session.ts';
import type { WorkerReply, WorkerSettings } from './worker-protocol.ts';

export interface RenderPoolOptions extends WorkerSettings {
  workers: number;
  timeoutMs: number;
  /** Jobs that may wait for a thread, */
  maxWaiting: number;
  /** and their characters (json-weight.ts); a tenant's only job that waits may have more. */
  maxWaitingChars: number;
}

/** Whose turn the server's own jobs are; no entity has an empty name. */
const OWN = '';
/** Old-generation heap of one thread: a tokenizer of 150,000 tokens takes about a third. */
const MAX_HEAP_MB = 768;
/** Threads in a row that end before they are ready; then the pool gives up, until the next job where none is left. */
const MAX_FAILED_STARTS = 3;
const RETRY_AFTER_SECONDS = 1;

interface Job {
  tenant: string;
  input: RenderInput;
  weight: number;
  /** Its client has left: it is not rendered any more. */
  signal: AbortSignal | undefined;
  resolve: (ids: Int32Array) => void;
  reject: (error: Error) => void;
}

interface Slot {
  worker: Worker;
  ready: boolean;
  job: Job | null;
  timer: NodeJS.Timeout | null;
}

export class RenderPool {
  readonly #options: RenderPoolOptions;
  readonly #slots = new Set<Slot>();
  readonly #waiting: Turns<Job>;
  readonly #chars: SharedBound;
  readonly #started: Promise<void>;
  #settleStart: { resolve: () => void; reject: (error: Error) => void } | null = null;
  #failedStarts = 0;
  #closed = false;

  private constructor(options: RenderPoolOptions) {
    this.#options = options;
    this.#waiting = new Turns(options.maxWaiting);
    this.#chars = new SharedBound(options.maxWaitingChars);
    this.#started = new Promise((resolve, reject) => {
      this.#settleStart = { resolve, reject };
    });
    for (let i = 0; i < Math.max(1, options.workers); i++) this.#spawn();
  }

  /** Resolves when the first thread can work; rejects with the ModelError of a tokenizer that cannot be used. */
  static async start(options: RenderPoolOptions): Promise<RenderPool> {
    const pool = new RenderPool(options);
    try {
      await pool.#started;
    } catch (error) {
      await pool.close();
      throw error;
    }
    return pool;
  }

  /** `tenant`: who asks; null = the server itself. */
  run(tenant: string | null, input: RenderInput, signal?: AbortSignal): Promise<Int32Array> {
    if (this.#closed) return Promise.reject(new SessionError('unavailable', 'The server is shutting down.'));
    return new Promise((resolve, reject) => {
      if (!this.#queue({ tenant: tenant ?? OWN, input, weight: jsonWeight(input), signal, resolve, reject })) {
        const message = 'Too many prompts are waiting to be rendered. Please try again later.';
        reject(new SessionError('queue_full', message, null, RETRY_AFTER_SECONDS));
        return;
      }
      // All have been given up. What keeps a thread from starting, a file that is gone or memory, may have passed.
      if (this.#slots.size === 0) this.#spawn();
      this.#dispatch();
    });
  }

  /** False where it may not wait. */
  #queue(job: Job): boolean {
    const { tenant, weight } = job;
    if (this.#chars.of(tenant) > 0 && !this.#chars.fits(tenant, weight)) return false;
    if (!this.#waiting.push(tenant, job)) return false;
    this.#chars.add(tenant, weight);
    return true;
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#failWaiting(new SessionError('unavailable', 'The server is shutting down.'));
    const slots = [...this.#slots];
    this.#slots.clear();
    for (const slot of slots)
      this.#finish(slot)?.reject(new SessionError('unavailable', 'The server is shutting down.'));
    await Promise.all(slots.map((slot) => slot.worker.terminate()));
  }

  #spawn(): void {
    let worker: Worker;
    try {
      worker = startThread(this.#options);
    } catch (error) {
      this.#startFailed(error as Error);
      return;
    }
    const slot: Slot = { worker, ready: false, job: null, timer: null };
    this.#slots.add(slot);
    worker.on('message', (reply: WorkerReply) => this.#receive(slot, reply));
    worker.on('error', (error) => this.#lost(slot, error));
    worker.on('exit', () => this.#lost(slot, null));
  }

  #receive(slot: Slot, reply: WorkerReply): void {
    // What a thread still says that is being ended: nothing may start for it once the pool is closed.
    if (!this.#slots.has(slot)) return;
    if (reply.type === 'ready') {
      slot.ready = true;
      slot.worker.unref();
      this.#failedStarts = 0;
      while (this.#slots.size < this.#options.workers && this.#failedStarts < MAX_FAILED_STARTS) this.#spawn();
      this.#settleStart?.resolve();
      this.#settleStart = null;
    } else if (reply.type === 'failed') {
      const error =
        reply.file === null
          ? new Error(reply.message)
          : new ModelError(reply.file, reply.message.replace(`${reply.file}: `, ''));
      this.#settleStart?.reject(error);
      this.#settleStart = null;
      void slot.worker.terminate();
    } else {
      const job = this.#finish(slot);
      if (reply.type === 'done') job?.resolve(reply.ids);
      else if (reply.type === 'refused') job?.reject(new SessionError(reply.code, reply.message, reply.param));
      else job?.reject(new Error(`Rendering failed: ${reply.message}`));
    }
    this.#dispatch();
  }

  #dispatch(): void {
    for (const slot of this.#slots) {
      // A job that cannot be handed over leaves the slot to the next one.
      while (slot.ready && !slot.job) {
        const job = this.#nextJob();
        if (!job) return;
        this.#assign(slot, job);
      }
    }
  }

  #nextJob(): Job | undefined {
    for (;;) {
      const job = this.#waiting.take();
      if (job) this.#chars.add(job.tenant, -job.weight);
      if (!job?.signal?.aborted) return job;
      job.reject(new SessionError('unavailable', 'The request was cancelled.'));
    }
  }

  #assign(slot: Slot, job: Job): void {
    slot.job = job;
    try {
      slot.worker.postMessage(job.input);
    } catch {
      slot.job = null;
      job.reject(new SessionError('bad_request', 'The request is nested too deeply to be rendered.', 'messages'));
      return;
    }
    slot.worker.ref();
    slot.timer = setTimeout(() => this.#timeOut(slot), this.#options.timeoutMs);
  }

  /** Frees the slot's job without an answer. */
  #finish(slot: Slot): Job | null {
    const { job } = slot;
    if (slot.timer) clearTimeout(slot.timer);
    slot.timer = null;
    slot.job = null;
    slot.worker.unref();
    return job;
  }

  #timeOut(slot: Slot): void {
    const message = `Rendering and tokenising the prompt took longer than ${this.#options.timeoutMs} ms.`;
    this.#replace(slot, new SessionError('bad_request', message, paramOf(slot.job)));
  }

  #lost(slot: Slot, error: Error | null): void {
    if (!this.#slots.has(slot)) return;
    const outOfMemory = error !== null && 'code' in error && error.code === 'ERR_WORKER_OUT_OF_MEMORY';
    const reason = outOfMemory ? 'Rendering the prompt took too much memory.' : 'Rendering the prompt failed.';
    this.#replace(slot, new SessionError(outOfMemory ? 'bad_request' : 'engine_failed', reason, paramOf(slot.job)));
  }

  #replace(slot: Slot, error: SessionError): void {
    this.#slots.delete(slot);
    this.#finish(slot)?.reject(error);
    void slot.worker.terminate();
    if (this.#closed) return;
    if (!slot.ready) {
      this.#startFailed(new Error('The threads that render prompts cannot start.'));
      return;
    }
    this.#failedStarts = 0;
    this.#spawn();
  }

  /** Another one is tried, a few times. */
  #startFailed(error: Error): void {
    this.#failedStarts++;
    if (this.#failedStarts < MAX_FAILED_STARTS) {
      this.#spawn();
      return;
    }
    this.#settleStart?.reject(error);
    this.#settleStart = null;
    if (this.#slots.size === 0)
      this.#failWaiting(new SessionError('unavailable', 'Prompt rendering is not available.'));
  }

  #failWaiting(error: SessionError): void {
    for (const job of this.#waiting.takeAll()) {
      this.#chars.add(job.tenant, -job.weight);
      job.reject(error);
    }
  }
}

/** Throws where the system has no thread to give. */
function startThread({ modelPath, maxModelLen }: RenderPoolOptions): Worker {
  const settings: WorkerSettings = { modelPath, maxModelLen };
  return new Worker(workerFile('sessions/render-worker'), {
    workerData: settings,
    resourceLimits: { maxOldGenerationSizeMb: MAX_HEAP_MB },
  });
}

function paramOf(job: Job | null): string | null {
  if (!job) return null;
  return job.input.kind === 'chat' || job.input.kind === 'open'
    ? 'messages'
    : job.input.kind === 'words'
      ? 'bad_words'
      : 'prompt';
}
