import type { Compiled, Grammars } from '../engine/grammars.ts';
import type { NativeProgram } from '../engine/native-grammar.ts';
import type { AdapterGate } from '../engine/adapter-gate.ts';
import type { PinnedAdapter } from '../engine/adapter-store.ts';
import type { NativeEngine, StepResult } from '../engine/native.ts';
import type { BlockHandle, TransferStats } from '../transfer/transfer.ts';
import type { EngineStats, SequenceRequest } from '../engine/protocol.ts';
import type { BackgroundShare } from './background.ts';
import type { EndedSequence } from './advice.ts';
import type { ForcedOutput } from './jumps.ts';
import type { PlannedStep } from './plan.ts';
import type { ResultOwners } from './results.ts';
import type { Scheduler, Started } from './scheduler.ts';

/** What happened since the last report; made once per step. */
export interface StepReport {
  /** Ids that have run for the first time. */
  started: number[];
  /** Parallel to `started`: prompt tokens found in the prefix cache. */
  cached: number[];
  /** The id of each result's sequence, -1 for one that was aborted meanwhile; null with `result` when no step has ended. */
  ids: Float64Array | null;
  /** The same for each scored prompt token; -1 also for one that was delivered before. */
  promptIds: Float64Array | null;
  result: StepResult | null;
  /** What grammars forced before the tokens of `result`. */
  forced: ForcedOutput[];
  /** Requests that can never run, and why. */
  refused: { id: number; message: string }[];
  /** Those that an extension ended between two steps; what `result` has of them comes before. */
  ended: EndedSequence[];
  /** Sequences that `result` ended and whose prompts' blocks are held for peers. */
  held: { id: number; blocks: BlockHandle }[];
  stats: EngineStats;
}

/** Stands before the scheduler: keeps requests that wait for blocks of a peer. */
export interface SubmitGate {
  /** Requests that wait. */
  readonly size: number;
  readonly stats: TransferStats;
  /** Called when `stats` have changed outside of a step. */
  onChange: () => void;
  /** True: it waits; `pass` is called when it may be submitted, later. */
  enter(request: SequenceRequest, pass: () => void): boolean;
  /** False: it does not wait here. */
  cancel(id: number): boolean;
  /** What a peer is told of blocks that are held. */
  handle(blockIds: number[]): BlockHandle;
  close(): void;
}

/** Takes a report. A promise makes the loop wait: the receiver is behind. */
export type ReportSink = (report: StepReport) => Promise<void> | undefined;

const TRANSFER_POLL_MS = 5;

/** A step that the engine has been given. */
interface Flight {
  step: PlannedStep;
  result: Promise<StepResult>;
}

/** What stands beside the scheduler. */
export interface LoopServices {
  /** Without it sequences under a grammar are refused. */
  grammars?: Grammars | null;
  gate?: SubmitGate | null;
  /** Without it sequences that name an adapter are refused. */
  adapters?: AdapterGate | null;
  /** Fills the time between steps. */
  background?: BackgroundShare | null;
}

/**
 * Runs the scheduler's plans on the engine and sleeps while there is nothing to do. Where the engine takes a second step while one runs,
 * it is given that as soon as the running one has begun, so that it never waits for this thread; newcomers still join it until it begins.
 */
export class SchedulerLoop {
  readonly #scheduler: Scheduler;
  readonly #engine: NativeEngine;
  readonly #report: ReportSink;
  readonly #grammars: Grammars | null;
  /** Requests whose grammar is being compiled: they are not the scheduler's yet. */
  readonly #compiling = new Map<number, AbortController>();
  readonly #gate: SubmitGate | null;
  readonly #adapters: AdapterGate | null;
  readonly #background: BackgroundShare | null;
  #wake: (() => void) | null = null;
  /** Sequences have joined the queue since the last plan. */
  #arrived = false;
  #onArrival: (() => void) | null = null;
  #stopping = false;
  #draining = false;
  /** Something has changed that the receiver has not been told. */
  #news = false;
  #finished: (ResultOwners & { result: StepResult }) | null = null;
  #refused: { id: number; message: string }[] = [];
  #ended: EndedSequence[] = [];

  constructor(scheduler: Scheduler, engine: NativeEngine, report: ReportSink, services: LoopServices = {}) {
    this.#grammars = services.grammars ?? null;
    this.#gate = services.gate ?? null;
    this.#adapters = services.adapters ?? null;
    this.#background = services.background ?? null;
    this.#background?.wakes(() => this.#stir());
    if (this.#gate) this.#gate.onChange = () => this.#tellSoon();
    if (this.#adapters) this.#adapters.onChange = () => this.#tellSoon();
    this.#scheduler = scheduler;
    this.#engine = engine;
    this.#report = report;
  }

  submit(requests: SequenceRequest[]): void {
    for (const request of requests) {
      const waits = this.#gate?.enter(request, () => {
        this.#enter(request);
        this.#wakeUp();
      });
      if (waits !== true) this.#enter(request);
    }
    this.#wakeUp();
  }

  #enter(request: SequenceRequest): void {
    if (request.grammar) this.#submitConstrained(request);
    else this.#admit(request, null);
  }

  /** One whose grammar is not at hand waits for it outside the queue: others pass it. */
  #submitConstrained(request: SequenceRequest): void {
    const { id, tenant, grammar: spec } = request;
    if (!this.#grammars || !spec) return void this.#refuse(id, 'This engine compiles no grammars.');
    const known = this.#grammars.find(tenant, spec);
    if (known) return this.#admit(request, known);
    const controller = new AbortController();
    this.#compiling.set(id, controller);
    void this.#grammars.compile(tenant, spec, controller.signal).then((compiled) => this.#compiled(request, compiled));
  }

  #compiled(request: SequenceRequest, compiled: Compiled): void {
    if (!this.#compiling.delete(request.id)) return;
    if ('program' in compiled) this.#admit(request, compiled.program);
    else this.#refuse(request.id, compiled.failure.message);
    this.#wakeUp();
  }

  /** The sequence joins the queue once its adapter is in memory. */
  #admit(request: SequenceRequest, grammar: NativeProgram | null): void {
    if (!request.adapter) return this.#enqueue(request, grammar, null);
    if (!this.#adapters) return this.#refuse(request.id, 'This engine serves no adapters.');
    const ready = (pinned: PinnedAdapter) => {
      this.#enqueue(request, grammar, pinned);
      this.#wakeUp();
    };
    const { directory } = request.adapter;
    const failed = (message: string) => {
      // For the log: clients are told of no folder.
      this.#refuse(request.id, `The adapter in ${directory} cannot be loaded: ${message}`);
      this.#wakeUp();
    };
    this.#adapters.add(request, request.adapter, ready, failed);
  }

  #enqueue(request: SequenceRequest, grammar: NativeProgram | null, adapter: PinnedAdapter | null): void {
    const reason = this.#trySubmit(request, grammar, adapter);
    if (reason === null) {
      this.#arrived = true;
      this.#onArrival?.();
      return;
    }
    adapter?.release();
    this.#refuse(request.id, reason);
  }

  #refuse(id: number, message: string): void {
    this.#refused.push({ id, message });
  }

  /** Takes effect at the next step boundary. */
  abort(ids: number[]): void {
    for (const id of ids) {
      if (this.#gate?.cancel(id) === true) continue;
      const compiling = this.#compiling.get(id);
      this.#compiling.delete(id);
      compiling?.abort();
      this.#adapters?.remove(id);
      if (!compiling) this.#scheduler.abort(id);
    }
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
    try {
      await this.#steps();
    } finally {
      this.#gate?.close();
    }
  }

  async #steps(): Promise<void> {
    let flight: Flight | null = null;
    while (flight || !this.#stopping) {
      const step = flight ? null : this.#noted(this.#scheduler.plan());
      if (step) flight = await this.#launch(step);
      if (flight) flight = await this.#complete(flight);
      else if (this.#scheduler.hasWork) await this.#untilPagesReturn();
      else if (await this.#idle()) return;
    }
  }

  /** Pages on their way from or to a peer may be what the only sequence misses. A transfer takes a bounded time. */
  async #untilPagesReturn(): Promise<void> {
    if (!this.#scheduler.transfersPages) throw new Error('The scheduler has work but plans nothing.');
    if (this.#news) await this.#tell([]);
    await new Promise<void>((resolve) => setTimeout(resolve, TRANSFER_POLL_MS));
  }

  /** A plan has been made: the queue has been looked at. */
  #noted(step: PlannedStep | null): PlannedStep | null {
    this.#arrived = false;
    this.#noteEnded();
    return step;
  }

  async #launch(step: PlannedStep): Promise<Flight> {
    // Who starts is told first: after a crash in this very step it must be known who was in it.
    const started = this.#scheduler.takeStarted();
    if (started.length > 0) await this.#tell(started);
    const result = this.#engine.step(step.plan);
    // Should it fail before it is waited for, its rejection is not unhandled: it is awaited in its turn.
    result.catch(() => {});
    return { step, result };
  }

  /** Takes in the results of the step; returns the one that follows it, where that has been given to the engine already. */
  async #complete(flight: Flight): Promise<Flight | null> {
    // The last step's results are sent while this one computes.
    if (this.#news) await this.#tell([]);
    const next = await this.#launchNext(flight);
    const result = await flight.result;
    this.#finished = { ...this.#scheduler.apply(flight.step, result), result };
    this.#news = true;
    if (this.#background && !next) await this.#giveShare(this.#background, result.micros);
    return next;
  }

  /** Waits for the step with the next one at the engine, if that can be planned before this one's results are known. */
  async #launchNext(flight: Flight): Promise<Flight | null> {
    // Between two steps the background's share is due.
    if (!this.#engine.retract || this.#stopping || this.#background?.sharesSteps) return null;
    const step = this.#noted(this.#scheduler.planAhead());
    if (!step) return null;
    let next = await this.#launch(step);
    while (await this.#arrivesBefore(flight)) {
      if (!this.#scheduler.mayJoin || !this.#engine.retract()) this.#arrived = false;
      else next = await this.#launch(this.#noted(this.#scheduler.join()) as PlannedStep);
    }
    return next;
  }

  /** False: the step ended, and no sequence has arrived since the plan of the next one. */
  async #arrivesBefore({ result }: Flight): Promise<boolean> {
    const arrival = new Promise<void>((resolve) => (this.#onArrival = resolve));
    const ended = () => undefined;
    if (!this.#arrived) await Promise.race([result.then(ended, ended), arrival]);
    this.#onArrival = null;
    return this.#arrived;
  }

  /** Results do not wait for what else is done before the next step. */
  async #giveShare(background: BackgroundShare, stepMicros: number): Promise<void> {
    if (!background.owes(stepMicros)) return;
    await this.#tell([]);
    await background.pay();
  }

  /** Waits for a message; true when there will be none. */
  async #idle(): Promise<boolean> {
    if (this.#news) await this.#tell([]);
    if (this.#scheduler.hasWork || this.#news || this.#stopping) return false;
    if (this.#background?.pending && !this.#draining) {
      await this.#background.idle();
      return false;
    }
    this.#scheduler.checkIdle();
    const waits = this.#compiling.size + (this.#gate?.size ?? 0) + (this.#adapters?.size ?? 0);
    if (this.#draining && waits === 0) return true;
    await new Promise<void>((resolve) => (this.#wake = resolve));
    return false;
  }

  #noteEnded(): void {
    const ended = this.#scheduler.takeEnded();
    if (ended.length === 0) return;
    this.#ended.push(...ended);
    this.#news = true;
  }

  #tell(started: Started[]): Promise<void> | undefined {
    const report: StepReport = {
      started: started.map(({ id }) => id),
      cached: started.map(({ cachedTokens }) => cachedTokens),
      ids: this.#finished?.ids ?? null,
      promptIds: this.#finished?.promptIds ?? null,
      result: this.#finished?.result ?? null,
      forced: this.#finished?.forced ?? [],
      refused: this.#refused,
      ended: this.#ended,
      held: this.#held(),
      stats: { ...this.#stats(), ...(this.#gate && { transfers: this.#gate.stats }) },
    };
    this.#finished = null;
    this.#refused = [];
    this.#ended = [];
    this.#news = false;
    return this.#report(report);
  }

  #held(): StepReport['held'] {
    const gate = this.#gate;
    if (!gate) return [];
    return this.#scheduler.holds.takeKept().map(({ id, blockIds }) => ({ id, blocks: gate.handle(blockIds) }));
  }

  #wakeUp(): void {
    this.#background?.interrupt();
    this.#tellSoon();
  }

  #tellSoon(): void {
    this.#news = true;
    this.#stir();
  }

  /** Ends the sleep; there is nothing to tell. */
  #stir(): void {
    this.#wake?.();
    this.#wake = null;
  }

  #stats(): EngineStats {
    const stats = this.#scheduler.stats();
    if (!this.#adapters) return stats;
    return { ...stats, waiting: stats.waiting + this.#adapters.size, adapters: this.#adapters.stats };
  }

  /** A malformed request ends alone. */
  #trySubmit(request: SequenceRequest, grammar: NativeProgram | null, adapter: PinnedAdapter | null): string | null {
    try {
      return this.#scheduler.submit(request, grammar, adapter);
    } catch (error) {
      return error instanceof Error ? error.message : 'The request is malformed.';
    }
  }
}
