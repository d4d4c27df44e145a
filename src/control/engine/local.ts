import { BackgroundShare } from '../scheduler/background.ts';
import { SchedulerLoop } from '../scheduler/loop.ts';
import { AdapterGate } from './adapter-gate.ts';
import {
  type EngineClient,
  type EngineState,
  EngineUnavailableError,
  type PartOf,
  type Places,
  type SequenceHandle,
} from './client.ts';
import { type LedgerEntry, SequenceLedger, type SubmitRequest } from './ledger.ts';
import { DEFAULT_TRAINING_FLOOR, type LoadedNative, loadEngine } from './load-engine.ts';
import type { GrammarSpec } from './native-grammar.ts';
import { loadNative, type NativeAddon } from './native.ts';
import { Outbox } from './outbox.ts';
import type { EngineConfig, EngineStats, GrammarFailure, SequenceOutput, ToEngine } from './protocol.ts';
import { openSession } from './trainer-messages.ts';
import type { AdapterRef, TrainerSession, TrainerState, TrainingEngine } from './training.ts';

export interface LocalEngineOptions {
  addon?: NativeAddon;
  onLoading?: (done: number, total: number) => void;
}

/** Loads the model into this process: for benchmarks and tests, which want no process and no channel between. */
export async function createLocalEngine(config: EngineConfig, options: LocalEngineOptions = {}): Promise<LocalEngine> {
  const addon = options.addon ?? loadNative();
  return new LocalEngine(await loadEngine(addon, config, options.onLoading ?? (() => {})), config);
}

/** The scheduler and the native engine behind the same interface as the supervised process; a failed step ends it. */
export class LocalEngine implements EngineClient, TrainingEngine {
  readonly info: Pick<LoadedNative, 'isa' | 'weightBytes' | 'pages' | 'pageBytes'>;
  readonly #loaded: LoadedNative;
  readonly #loop: SchedulerLoop;
  readonly #adapters: AdapterGate;
  readonly #ledger: SequenceLedger;
  readonly #outbox: Outbox;
  readonly #ended: Promise<void>;
  #state: EngineState = 'ready';
  #nextTrainer = 1;

  constructor(loaded: LoadedNative, config: EngineConfig) {
    const { isa, weightBytes, pages, pageBytes } = loaded;
    this.info = { isa, weightBytes, pages, pageBytes };
    this.#loaded = loaded;
    const unbounded = { maxWaitingRequests: Infinity, maxWaitingTokens: Infinity };
    this.#ledger = new SequenceLedger({ maxSequences: config.maxSequences, ...unbounded });
    this.#adapters = new AdapterGate(loaded.adapters);
    this.#loop = new SchedulerLoop(
      loaded.scheduler,
      loaded.engine,
      (report) => {
        for (const id of this.#ledger.receive({ type: 'step', ...report })) this.#outbox.abortId(id);
        return undefined;
      },
      {
        grammars: loaded.grammars,
        gate: loaded.transfers,
        adapters: this.#adapters,
        background: new BackgroundShare(loaded.trainers, config.trainingFloor ?? DEFAULT_TRAINING_FLOOR),
      },
    );
    this.#outbox = new Outbox(this.#ledger, (message) => this.#send(message));
    this.#outbox.open([]);
    this.#ended = this.#run();
  }

  get state(): EngineState {
    return this.#state;
  }

  async ready(): Promise<void> {}

  submit(
    requests: SubmitRequest[],
    sink: (index: number, output: SequenceOutput) => void,
    of?: PartOf,
  ): SequenceHandle[] {
    if (this.#state !== 'ready') throw new EngineUnavailableError('The engine is not running.');
    const entries = this.#ledger.add(requests, sink, of);
    this.#outbox.submit(entries);
    return entries.map((entry) => ({
      id: entry.id,
      get startedAt() {
        return entry.startedAt;
      },
      // There is no process that could crash alone, hence no replay.
      markStreamed: () => {},
      abort: () => this.#abort(entry),
    }));
  }

  reserve(tenant: string, count: number): Places {
    return this.#ledger.reserve(tenant, count);
  }

  async compileGrammar(tenant: string, spec: GrammarSpec, signal?: AbortSignal): Promise<GrammarFailure | null> {
    const compiled = await this.#loaded.grammars.compile(tenant, spec, signal);
    return 'failure' in compiled ? compiled.failure : null;
  }

  stats(): EngineStats {
    const stats = this.#loaded.scheduler.stats();
    const adapters = this.#adapters.stats;
    return { ...stats, adapters, waiting: Math.max(stats.waiting, this.#ledger.waiting) };
  }

  /** Later sequences find nothing of what was computed before. */
  resetPrefixCache(): void {
    this.#loop.resetPrefixCache();
  }

  async openTrainer(state: TrainerState): Promise<TrainerSession> {
    if (this.#state === 'dead') throw new EngineUnavailableError('The engine is not running.');
    const { trainers } = this.#loaded;
    const id = this.#nextTrainer++;
    trainers.open(id);
    return openSession(
      (work) => trainers.call(id, work),
      () => trainers.close(id),
      state,
    );
  }

  loadAdapter(adapter: AdapterRef, signal?: AbortSignal, tenant: string | null = null): Promise<void> {
    if (this.#state === 'dead') return Promise.reject(new EngineUnavailableError('The engine is not running.'));
    return this.#adapters.load(adapter, signal, tenant);
  }

  unloadAdapter(version: string): Promise<void> {
    this.#adapters.unload(version);
    return Promise.resolve();
  }

  async drain(timeoutMs: number): Promise<void> {
    if (this.#state === 'dead') return;
    this.#state = 'draining';
    // Submits of this turn go out first.
    setImmediate(() => this.#loop.drain());
    const timer = setTimeout(() => this.#loop.stop(), timeoutMs);
    await this.#ended;
    clearTimeout(timer);
  }

  /** Ends at the next step boundary. */
  async close(): Promise<void> {
    this.#loop.stop();
    await this.#ended;
  }

  async #run(): Promise<void> {
    let error = 'The engine was closed.';
    try {
      await this.#loop.run();
    } catch (failure) {
      error = failure instanceof Error ? failure.message : String(failure);
    }
    this.#state = 'dead';
    this.#outbox.close();
    this.#loaded.close();
    this.#ledger.failAll(error);
  }

  #abort(entry: LedgerEntry): void {
    if (this.#ledger.remove(entry)) this.#outbox.abort(entry);
  }

  #send(message: ToEngine): void {
    if (message.type === 'submit') this.#loop.submit(message.requests);
    if (message.type === 'abort') this.#loop.abort(message.ids);
  }
}
