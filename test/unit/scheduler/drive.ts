/** Drives the scheduler loop with the fake native engine and collects what each sequence got. */
import { AdapterGate } from '../../../src/control/engine/adapter-gate.ts';
import { AdapterStore } from '../../../src/control/engine/adapter-store.ts';
import type { SamplingSpec } from '../../../src/control/engine/native.ts';
import { forEachOutput } from '../../../src/control/engine/outputs.ts';
import type {
  EngineStats,
  FinishReason,
  SequenceOutput,
  SequenceRequest,
} from '../../../src/control/engine/protocol.ts';
import type { SchedulerOptions } from '../../../src/control/scheduler/admission.ts';
import { type ReportSink, SchedulerLoop } from '../../../src/control/scheduler/loop.ts';
import { Scheduler } from '../../../src/control/scheduler/scheduler.ts';
import { FakeNativeEngine, type FakeHooks } from './fake-native.mjs';

export const VOCABULARY = 1000;

export function options(changes: Partial<SchedulerOptions> = {}): SchedulerOptions {
  return {
    maxSequences: 8,
    maxBatchTokens: 64,
    maxModelLen: 256,
    pages: 256,
    enableChunkedPrefill: true,
    vocabSize: VOCABULARY,
    maxLogprobs: 20,
    ...changes,
  };
}

export function sampling(changes: Partial<SamplingSpec> = {}): SamplingSpec {
  return {
    temperature: 1,
    topP: 1,
    topK: 0,
    minP: 0,
    seed: 7n,
    choice: 0,
    maxTokens: 10,
    minTokens: 0,
    stopIds: new Int32Array(0),
    logprobs: -1,
    ...changes,
  };
}

export function request(id: number, promptLength: number, changes: Partial<SamplingSpec> = {}): SequenceRequest {
  const promptIds = Int32Array.from({ length: promptLength }, (_, index) => (id * 31 + index * 7) % VOCABULARY);
  return { id, promptIds, resumeIds: new Int32Array(0), sampling: sampling(changes), priority: 0, tenant: 'a' };
}

/** A small generator of its own, so that a failing run can be repeated. */
export function random(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

export interface Collected {
  tokens: number[];
  /** Prompt positions that were scored, and what for. */
  scores: { position: number; logprob: number; rank: number; top: number[] }[];
  finish: FinishReason | null;
  error: string | undefined;
}

/** Every adapter exists and weighs one byte. */
const openAdapter = async () => ({ bytes: 1, load: async () => ({ bytes: 1, close: () => {} }) });

/** One loop over one fake engine. `run` ends when all work is done. */
export class Driver {
  readonly engine: FakeNativeEngine;
  readonly loop: SchedulerLoop;
  readonly adapters = new AdapterGate(new AdapterStore(openAdapter, 100, () => 0));
  readonly collected = new Map<number, Collected>();
  /** In the order of their first step. */
  readonly started: number[] = [];
  /** In the order in which they finished. */
  readonly finished: number[] = [];
  readonly reports: EngineStats[] = [];
  /** By id: prompt tokens found in the prefix cache. */
  readonly cached = new Map<number, number>();
  readonly scheduler: Scheduler;
  #running: Promise<void> | null = null;
  onOutput: (output: SequenceOutput) => void = () => {};

  constructor(schedulerOptions: SchedulerOptions, hooks: FakeHooks = {}) {
    const { maxSequences, maxBatchTokens, pages, maxModelLen, vocabSize, maxLogprobs } = schedulerOptions;
    const engineOptions = { maxSequences, maxBatchTokens, pages, maxModelLen, samplableVocab: vocabSize, maxLogprobs };
    this.engine = new FakeNativeEngine(engineOptions, { queues: true, ...hooks });
    this.scheduler = new Scheduler(schedulerOptions);
    const report: ReportSink = (report) => {
      this.started.push(...report.started);
      report.started.forEach((id, index) => this.cached.set(id, report.cached[index] as number));
      this.reports.push(report.stats);
      forEachOutput({ type: 'step', ...report }, (output) => this.#collect(output));
      return undefined;
    };
    this.loop = new SchedulerLoop(this.scheduler, this.engine, report, { adapters: this.adapters });
  }

  get stats(): EngineStats {
    return this.reports.at(-1) as EngineStats;
  }

  async run(requests: SequenceRequest[]): Promise<void> {
    this.loop.submit(requests);
    this.loop.drain();
    await this.loop.run();
  }

  /** Runs these to their end and can be called again; `close` ends the loop. */
  async complete(requests: SequenceRequest[]): Promise<Collected[]> {
    this.loop.submit(requests);
    return this.settled(requests);
  }

  /** Waits for the end of these, which have been or will be submitted. */
  async settled(requests: SequenceRequest[]): Promise<Collected[]> {
    this.#running ??= this.loop.run();
    const ended = () => requests.every(({ id }) => this.of(id).finish !== null);
    const polled = async () => {
      while (!ended() || this.stats.pagesUsed > 0) await new Promise((resolve) => setImmediate(resolve));
    };
    // The loop itself ends only with an error.
    await Promise.race([polled(), this.#running.then(() => Promise.reject(new Error('the loop has ended')))]);
    return requests.map(({ id }) => this.of(id));
  }

  async close(): Promise<void> {
    this.loop.drain();
    await this.#running;
  }

  of(id: number): Collected {
    const collected = this.collected.get(id) ?? { tokens: [], scores: [], finish: null, error: undefined };
    this.collected.set(id, collected);
    return collected;
  }

  #collect(output: SequenceOutput): void {
    const collected = this.of(output.id);
    if (collected.finish !== null) throw new Error(`Sequence ${output.id} got an output after its end.`);
    collected.tokens.push(...output.tokens);
    const piece = output.promptLogprobs;
    piece?.top.forEach(({ ids }, index) =>
      collected.scores.push({
        position: piece.start + index,
        logprob: piece.logprobs[index] as number,
        rank: piece.ranks[index] as number,
        top: [...ids],
      }),
    );
    collected.finish = output.finish;
    collected.error = output.error;
    if (output.finish !== null) this.finished.push(output.id);
    this.onOutput(output);
  }
}
