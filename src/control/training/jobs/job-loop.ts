/**
 * Runs accepted jobs one at a time: entities in turn, of each the oldest first, those of one model strictly in order. One that has run for its
 * turn lets jobs of other models go first. What a crash or a stop interrupted is queued again and goes on from its last snapshot; a job that
 * keeps crashing without progress fails.
 */
import { performance } from 'node:perf_hooks';
import type { Logger } from 'pino';
import { hasEnded, TransitionError } from '../../lifecycle.ts';
import { removeUnnamed, type BlobStore } from '../../store/blob-store.ts';
import type { JobRepository, StoredJob } from '../../store/job-repository.ts';
import { SqliteError } from '../../store/sqlite-client.ts';
import { InterruptedError } from '../errors.ts';
import { CANCELLED, CANCELLED_MESSAGE, type JobRest, type TurnIsOver } from '../ports.ts';
import { isUnavailable } from '../service-error.ts';

/** Trains one job. Rejects only where something outside of the job is wrong; the job then runs again. */
export type RunJob = (job: StoredJob, signal: AbortSignal, turnIsOver: TurnIsOver) => Promise<JobRest>;

export interface JobLoopOptions {
  repository: JobRepository;
  blobs: BlobStore;
  run: RunJob;
  /** Starts without progress before a job fails. */
  maxAttempts: number;
  /** After which a job lets others go first; 0: it runs to its end. */
  turnMs: number;
  log: Logger;
  /** Wait before a job that crashed runs again; doubled with every crash in a row. */
  retryDelayMs: number;
}

/** Key of a job's last event. */
const END = 'end';
const MAX_DELAY_FACTOR = 64;
/** Entities and models whose turn is remembered; one that is forgotten is as one that had none. */
const MAX_SERVED = 10_000;

interface Interruption {
  /** The start counts as one without progress, where there was none. */
  counts: boolean;
  /** What a job that may not be run again ends with; null: it goes on. */
  fault: string | null;
}

/** A stop that was asked for is no crash. */
const STOPPED: Interruption = { counts: false, fault: null };

interface Running {
  job: StoredJob;
  abort: AbortController;
  rest: Promise<void>;
}

export class JobLoop {
  readonly #options: JobLoopOptions;
  #running: Running | null = null;
  /** Entities that had a turn, the last one last. */
  #served: string[] = [];
  /** Models whose job has let others go first, the last one last, with the newest of these: who came later does not go first as well. */
  readonly #yielded = new Map<string, number>();
  /** Jobs whose run is over and whose state does not say so yet. */
  readonly #unsettled = new Map<string, Interruption>();
  #crashes = 0;
  #timer: NodeJS.Timeout | null = null;
  #looking = false;
  #again = false;
  #stopped = true;

  constructor(options: JobLoopOptions) {
    this.#options = options;
  }

  /** Queues again what was running when the process last ended, and begins. */
  async start(): Promise<void> {
    for (const job of await this.#options.repository.running()) {
      this.#options.log.warn({ job: job.id, attempts: job.attempts }, 'a job was cut off and goes on');
      if (job.cancelRequested) await this.end(job.id, 'cancel', CANCELLED_MESSAGE);
      else await this.#options.repository.requeue(job.id, true);
    }
    this.#stopped = false;
    this.wake();
  }

  /** Something may be queued. */
  wake(): void {
    if (this.#stopped || this.#running !== null || this.#timer !== null) return;
    if (this.#looking) {
      this.#again = true;
      return;
    }
    this.#looking = true;
    void this.#look();
  }

  /** A queued job ends now; a running one when it has come to rest. */
  async cancel(jobId: string): Promise<void> {
    // From here on it is not started any more; one that has been is found by the abort.
    if (!(await this.#options.repository.requestCancel(jobId))) return;
    await this.#abort((job) => job.id === jobId, CANCELLED);
    await this.#settle(jobId, STOPPED);
  }

  /** Resolves when nothing trains the model. */
  async stopModel(modelId: string): Promise<void> {
    await this.#abort((job) => job.modelId === modelId, 'the model was deleted');
  }

  /** The running job snapshots and stops; it goes on at the next start. */
  async stop(): Promise<void> {
    this.#stopped = true;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    await this.#abort(() => true, 'the server stops');
  }

  /** Ends a job from outside of its run. */
  async end(jobId: string, action: 'fail' | 'cancel', message: string): Promise<void> {
    const { repository, blobs, log } = this.#options;
    const event = { key: END, type: 'training_failed', data: { error_message: message }, at: new Date().toISOString() };
    await removeUnnamed(blobs, (await repository.end(jobId, action, event)) ?? [], log);
  }

  async #abort(which: (job: StoredJob) => boolean, reason: string): Promise<void> {
    const running = this.#running;
    if (running === null || !which(running.job)) return;
    running.abort.abort(reason);
    // One that could not start is at rest as well; why, the look for jobs tells.
    await running.rest.catch(() => undefined);
  }

  async #look(): Promise<void> {
    try {
      await this.#settleAll();
      do {
        this.#again = false;
        while (!this.#stopped && this.#timer === null && (await this.#next()));
      } while (this.#again && !this.#stopped && this.#timer === null);
    } catch (error) {
      this.#options.log.error({ err: error }, 'the job queue could not be read');
      this.#retry();
    } finally {
      this.#looking = false;
    }
  }

  /** Runs the next job to its rest. False where there is none. */
  async #next(): Promise<boolean> {
    const { repository, maxAttempts } = this.#options;
    const job = await repository.nextQueued(this.#served, this.#yielded);
    if (job === null || this.#stopped) return false;
    this.#served = withLast(this.#served, job.entity);
    if (job.cancelRequested) {
      await this.end(job.id, 'cancel', CANCELLED_MESSAGE);
      return true;
    }
    if (job.attempts >= maxAttempts) {
      await this.end(job.id, 'fail', `The job was interrupted ${job.attempts} times in a row without progress.`);
      return true;
    }
    // Before the start: a cancel that finds the job running also finds what to abort.
    const abort = new AbortController();
    const rest = this.#startAndRun(job, abort.signal);
    this.#running = { job, abort, rest };
    try {
      await rest;
    } finally {
      this.#running = null;
    }
    return true;
  }

  async #startAndRun(job: StoredJob, signal: AbortSignal): Promise<void> {
    const { repository } = this.#options;
    try {
      await repository.start(job.id, new Date().toISOString());
    } catch (error) {
      // Cancelled or deleted in between.
      if (error instanceof TransitionError || (await repository.find(job.id)) === null) return;
      throw error;
    }
    await this.#run(job, signal);
  }

  async #run(job: StoredJob, signal: AbortSignal): Promise<void> {
    const { log } = this.#options;
    log.info({ job: job.id, model: job.modelId, kind: job.kind }, 'training job runs');
    let interruption: Interruption = { counts: true, fault: null };
    const rest = await this.#options.run(job, signal, this.#turnOf(job)).catch((error: unknown): JobRest => {
      const fault = error instanceof InterruptedError ? error.message : null;
      // A database that fails, or an engine that is not started again, is not the job's fault.
      interruption = { counts: !(error instanceof SqliteError || isUnavailable(error)), fault };
      if (!signal.aborted) {
        this.#crashes++;
        log.error({ err: error, job: job.id, crashes: this.#crashes }, 'training job was interrupted');
        this.#retry();
      }
      return 'stopped';
    });
    if (rest !== 'stopped') this.#crashes = 0;
    if (rest !== 'yielded') this.#yielded.delete(job.modelId);
    this.#unsettled.set(job.id, signal.aborted || rest === 'yielded' ? STOPPED : interruption);
    await this.#settleAll().catch((error: unknown) => {
      log.error({ err: error, job: job.id }, 'a job could not be queued again');
      this.#retry();
    });
    log.info({ job: job.id, rest }, 'training job rests');
  }

  /** It begins behind the first step: what a job reads at its start is not to be most of what it does. */
  #turnOf(job: StoredJob): TurnIsOver {
    const { repository, turnMs, log } = this.#options;
    let begin: number | null = null;
    return async () => {
      begin ??= performance.now();
      if (turnMs === 0 || performance.now() - begin < turnMs) return false;
      // Asked again after the next step; what the database's fault means for the job, its own writes tell.
      const newest = await repository.newestOther(job.modelId).catch((error: unknown) => {
        log.error({ err: error, job: job.id }, 'whether other jobs wait could not be read');
        return null;
      });
      if (newest !== null) this.#goesBehind(job.modelId, newest);
      return newest !== null;
    };
  }

  #goesBehind(modelId: string, sequence: number): void {
    this.#yielded.delete(modelId);
    this.#yielded.set(modelId, sequence);
    const [oldest] = this.#yielded.keys();
    if (this.#yielded.size > MAX_SERVED && oldest !== undefined) this.#yielded.delete(oldest);
  }

  async #settleAll(): Promise<void> {
    for (const [jobId, interruption] of this.#unsettled) {
      await this.#settle(jobId, interruption);
      this.#unsettled.delete(jobId);
    }
  }

  /** A run that came to rest without an end is queued again, or ends where its client wanted that. */
  async #settle(jobId: string, { counts, fault }: Interruption): Promise<void> {
    const { repository, maxAttempts } = this.#options;
    const job = await repository.find(jobId);
    if (job === null || hasEnded(job.state)) return;
    if (job.cancelRequested) await this.end(jobId, 'cancel', CANCELLED_MESSAGE);
    else if (fault !== null && job.attempts >= maxAttempts) await this.end(jobId, 'fail', fault);
    else await repository.requeue(jobId, counts);
  }

  #retry(): void {
    if (this.#stopped || this.#timer !== null) return;
    const factor = Math.min(2 ** Math.max(0, this.#crashes - 1), MAX_DELAY_FACTOR);
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.wake();
    }, this.#options.retryDelayMs * factor);
    this.#timer.unref();
  }
}

function withLast(all: readonly string[], one: string): string[] {
  return [...all.filter((other) => other !== one), one].slice(-MAX_SERVED);
}
