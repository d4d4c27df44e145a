import type { NativeEngine, StepResult } from '../engine/native.ts';
import type { EngineStats, SequenceRequest } from '../engine/protocol.ts';
import type { PlannedStep } from './plan.ts';
import type { ResultOwners, Scheduler, Started } from './scheduler.ts';

/** What happened since the last report; made once per step. */
export interface StepReport {
  /** Ids that began to run. */
  started: number[];
  /** Parallel to `started`: prompt tokens found in the prefix cache. */
  cached: number[];
  /** The id of each result's sequence (-1: aborted meanwhile); null when no step ended since the last report. */
  ids: Float64Array | null;
  /** The same for each scored prompt token; -1 also for one that was reported before. */
  promptIds: Float64Array | null;
  result: StepResult | null;
  /** Requests that can never run. */
  refused: { id: number; message: string }[];
  stats: EngineStats;
}

/** Takes a report. A promise makes the loop wait: the receiver is behind. */
export type ReportSink = (report: StepReport) => Promise<void> | undefined;

/** Runs the scheduler's plans on the engine, one after the other, and sleeps while there is nothing to do. */
export class SchedulerLoop {
  readonly #scheduler: Scheduler;
  readonly #engine: NativeEngine;
  readonly #report: ReportSink;
  #wake: (() => void) | null = null;
  #stopping = false;
  #draining = false;
  /** Something has changed that the receiver has not been told. */
  #news = false;
  #finished: (ResultOwners & { result: StepResult }) | null = null;
  #refused: { id: number; message: string }[] = [];

  constructor(scheduler: Scheduler, engine: NativeEngine, report: ReportSink) {
    this.#scheduler = scheduler;
    this.#engine = engine;
    this.#report = report;
  }

  submit(requests: SequenceRequest[]): void {
    for (const request of requests) {
      const reason = this.#trySubmit(request);
      if (reason !== null) this.#refused.push({ id: request.id, message: reason });
    }
    this.#wakeUp();
  }

  /** Takes effect at the next step boundary. */
  abort(ids: number[]): void {
    for (const id of ids) this.#scheduler.abort(id);
    this.#wakeUp();
  }

  /** Takes effect between two steps. */
  resetPrefixCache(): void {
    this.#scheduler.resetPrefixCache();
  }

  /** `run` returns once all work is done. */
  drain(): void {
    this.#draining = true;
    this.#wakeUp();
  }

  /** `run` returns at the next step boundary. */
  stop(): void {
    this.#stopping = true;
    this.#wakeUp();
  }

  /** Rejects when a step fails or the books do not balance: then nothing of the engine's state can be trusted. */
  async run(): Promise<void> {
    while (!this.#stopping) {
      const step = this.#scheduler.plan();
      if (step) await this.#runStep(step);
      else if (this.#scheduler.hasWork) throw new Error('The scheduler has work but plans nothing.');
      else if (await this.#idle()) return;
    }
  }

  async #runStep(step: PlannedStep): Promise<void> {
    // Who starts is told first: after a crash in this very step it must be known who was in it.
    const started = this.#scheduler.takeStarted();
    if (started.length > 0) await this.#tell(started);
    const running = this.#engine.step(step.plan);
    // The last step's results are sent while this one computes. Should this one fail before that is done, its rejection
    // is not unhandled: it is awaited below.
    running.catch(() => {});
    if (this.#news) await this.#tell([]);
    const result = await running;
    this.#finished = { ...this.#scheduler.apply(step, result), result };
    this.#news = true;
  }

  /** Waits for a message; true when there will be none. */
  async #idle(): Promise<boolean> {
    if (this.#news) await this.#tell([]);
    if (this.#scheduler.hasWork || this.#news || this.#stopping) return false;
    this.#scheduler.checkIdle();
    if (this.#draining) return true;
    await new Promise<void>((resolve) => (this.#wake = resolve));
    return false;
  }

  #tell(started: Started[]): Promise<void> | undefined {
    const report: StepReport = {
      started: started.map(({ id }) => id),
      cached: started.map(({ cachedTokens }) => cachedTokens),
      ids: this.#finished?.ids ?? null,
      promptIds: this.#finished?.promptIds ?? null,
      result: this.#finished?.result ?? null,
      refused: this.#refused,
      stats: this.#scheduler.stats(),
    };
    this.#finished = null;
    this.#refused = [];
    this.#news = false;
    return this.#report(report);
  }

  #wakeUp(): void {
    this.#news = true;
    this.#wake?.();
    this.#wake = null;
  }

  /** A malformed request ends alone. */
  #trySubmit(request: SequenceRequest): string | null {
    try {
      return this.#scheduler.submit(request);
    } catch (error) {
      return error instanceof Error ? error.message : 'The request is malformed.';
    }
  }
}
