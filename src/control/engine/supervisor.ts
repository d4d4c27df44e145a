import { fileURLToPath } from 'node:url';
import type { LlamaConfig } from '../llama/config.ts';
import { AdapterCalls } from './adapter-calls.ts';
import {
  type EngineClient,
  type EngineState,
  EngineUnavailableError,
  type PartOf,
  type Places,
  type SequenceHandle,
} from './client.ts';
import { CompileCalls } from './compile-calls.ts';
import { EngineChild } from './engine-child.ts';
import { type LedgerEntry, SequenceLedger, type SubmitRequest } from './ledger.ts';
import { Outbox } from './outbox.ts';
import { withResolvers } from '../with-resolvers.ts';
import type { GrammarSpec } from './native-grammar.ts';
import type { EngineConfig, EngineStats, FromEngine, GrammarFailure, SequenceOutput } from './protocol.ts';
import { TrainerCalls } from './trainer-calls.ts';
import type { AdapterRef, TrainerSession, TrainerState, TrainingEngine } from './training.ts';
import { StatsTotal } from './stats-total.ts';
import { Watchdog } from './watchdog.ts';

export interface SupervisorOptions {
  config: EngineConfig | LlamaConfig;
  /** Sequences that may wait beyond those that find a free slot. */
  maxWaitingRequests: number;
  /** Prompt tokens that may wait; the lone waiting request of a tenant may have more. */
  maxWaitingTokens: number;
  /** Script of the engine process; another one only in tests. */
  entry?: string;
  /** An engine that has work and tells of no step or slice of it for so long is killed and started again. Default 300 s. */
  stepTimeoutMs?: number;
  onLoading?: (done: number, total: number) => void;
  onStateChange?: (state: EngineState) => void;
  /** Lines for the operator: how the engine process ended, when it is started again. */
  log?: (line: string) => void;
}

export type EngineInfo = Omit<Extract<FromEngine, { type: 'ready' }>, 'type'>;

const ENTRY = fileURLToPath(new URL('./engine-process.js', import.meta.url));
const FIRST_BACKOFF_MS = 100;
const LAST_BACKOFF_MS = 5000;
/**
 * Crashes in a row, without a finished sequence, an answer to a trainer or a minute of life between them, after which it is given up. One
 * while a trainer has work is not among them: what its job's rows need may be more than the machine has, and the job ends after a few of these.
 */
const MAX_CRASHES = 5;
const STABLE_MS = 60_000;
const STEP_TIMEOUT_MS = 300_000;
/** For a drained engine to end by itself. */
const EXIT_GRACE_MS = 5000;

/**
 * Runs the engine process, starts it again when it ends, and keeps the books of what it owes. Each life of the process is one
 * EngineChild; only the present one is listened to.
 */
export class EngineSupervisor implements EngineClient, TrainingEngine {
  readonly #options: SupervisorOptions;
  readonly #ledger: SequenceLedger;
  readonly #outbox: Outbox;
  readonly #stats = new StatsTotal();
  readonly #adapters = new AdapterCalls((message) => this.#child?.send(message));
  readonly #trainers = new TrainerCalls((message) => this.#child?.send(message));
  readonly #firstReady = withResolvers<void>();
  readonly #watchdog: Watchdog;
  readonly #compiles = new CompileCalls((message) => this.#child?.send(message));
  /** What the next engine process is started with. */
  #config: EngineConfig | LlamaConfig;
  #state: EngineState = 'starting';
  #child: EngineChild | null = null;
  #info: EngineInfo | null = null;
  #restarts = 0;
  #crashesInARow = 0;
  #doneAtCrash = 0;
  #readySince: number | null = null;
  #respawnTimer: NodeJS.Timeout | null = null;
  /** Resolved when the last sequence has ended. */
  #whenEmpty: (() => void) | null = null;
  #closed = false;
  #drained: Promise<void> | null = null;

  constructor(options: SupervisorOptions) {
    this.#options = options;
    const { config, maxWaitingRequests, maxWaitingTokens } = options;
    this.#config = config;
    // A rejection that nobody awaits must not end the server.
    this.#firstReady.promise.catch(() => {});
    this.#ledger = new SequenceLedger({ maxSequences: config.maxSequences, maxWaitingRequests, maxWaitingTokens });
    this.#outbox = new Outbox(this.#ledger, (message) => this.#child?.send(message));
    const owes = () =>
      this.#child !== null && this.#readySince !== null && (this.#ledger.size > 0 || this.#trainers.busy);
    this.#watchdog = new Watchdog(options.stepTimeoutMs ?? STEP_TIMEOUT_MS, owes, () => this.#hangs());
    this.#spawn();
  }

  get state(): EngineState {
    return this.#state;
  }

  /** What the engine told when it was last ready. */
  get info(): EngineInfo | null {
    return this.#info;
  }

  /** How often the process was started again. */
  get restarts(): number {
    return this.#restarts;
  }

  /** Of the present engine process. */
  get pid(): number | undefined {
    return this.#child?.pid;
  }

  ready(): Promise<void> {
    return this.#firstReady.promise;
  }

  submit(
    requests: SubmitRequest[],
    sink: (index: number, output: SequenceOutput) => void,
    of?: PartOf,
  ): SequenceHandle[] {
    this.#checkAccepts();
    const entries = this.#ledger.add(requests, sink, of);
    this.#outbox.submit(entries);
    return entries.map((entry) => this.#handle(entry));
  }

  reserve(tenant: string, count: number): Places {
    this.#checkAccepts();
    return this.#ledger.reserve(tenant, count);
  }

  async compileGrammar(tenant: string, grammar: GrammarSpec, signal?: AbortSignal): Promise<GrammarFailure | null> {
    this.#checkAccepts();
    return this.#compiles.call(tenant, grammar, signal);
  }

  stats(): EngineStats {
    return this.#stats.read(this.#ledger.waiting);
  }

  /** Sequences submitted from now on find nothing of what was computed before. An engine that is not ready has nothing. */
  resetPrefixCache(): void {
    if (this.#readySince !== null) this.#child?.send({ type: 'reset-prefix-cache' });
  }

  openTrainer(state: TrainerState): Promise<TrainerSession> {
    return this.#trainers.openTrainer(state);
  }

  loadAdapter(adapter: AdapterRef, signal?: AbortSignal, tenant: string | null = null): Promise<void> {
    return this.#adapters.load(adapter, signal, tenant);
  }

  unloadAdapter(version: string): Promise<void> {
    this.#adapters.unload(version);
    return Promise.resolve();
  }

  drain(timeoutMs: number): Promise<void> {
    this.#drained ??= this.#drain(timeoutMs);
    return this.#drained;
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#stopRespawning();
    const child = this.#child;
    this.#die('The server is shutting down.');
    if (!child) return;
    child.kill();
    await child.exited;
  }

  #checkAccepts(): void {
    if (this.#state === 'draining') throw new EngineUnavailableError('The server is shutting down.');
    if (this.#state === 'dead') throw new EngineUnavailableError('The engine is not running.');
  }

  #handle(entry: LedgerEntry): SequenceHandle {
    return {
      id: entry.id,
      get startedAt() {
        return entry.startedAt;
      },
      markStreamed: () => {
        entry.streamed = true;
      },
      abort: () => {
        if (!this.#ledger.remove(entry)) return;
        this.#outbox.abort(entry);
        this.#noticeEmpty();
      },
    };
  }

  #spawn(): void {
    this.#readySince = null;
    this.#child = new EngineChild(this.#options.entry ?? ENTRY, this.#config, {
      message: (child, message) => {
        if (child === this.#child) this.#receive(message);
      },
      exit: (child, how) => {
        if (child === this.#child) this.#crashed(how);
      },
    });
  }

  #receive(message: FromEngine): void {
    this.#watchdog.heard();
    if (message.type === 'step') {
      this.#stats.update(message.stats);
      for (const id of this.#ledger.receive(message)) this.#outbox.abortId(id);
      this.#outbox.review();
      this.#noticeEmpty();
    } else if (message.type === 'loading') {
      // Progress is reported from another thread and may come late.
      if (this.#readySince === null) this.#options.onLoading?.(message.done, message.total);
    } else if (message.type === 'compiled') {
      this.#compiles.answered(message.id, message.failure);
    } else if (message.type === 'log') {
      this.#log(message.line);
    } else if (message.type === 'ready') {
      this.#becomeReady(message);
    } else if (message.type === 'trainer') {
      this.#trainers.answered(message);
    } else if (message.type === 'adapter') {
      this.#adapters.receive(message.id, message.error);
    } else if (message.type === 'failed') {
      this.#failed(message.message);
    }
  }

  #becomeReady({ isa, weightBytes, pages, pageBytes, kvPort }: EngineInfo): void {
    this.#info = { isa, weightBytes, pages, pageBytes, ...(kvPort !== undefined && { kvPort }) };
    if (kvPort !== undefined) this.#config = listeningAt(this.#config, kvPort);
    this.#readySince = performance.now();
    if (this.#state !== 'draining') this.#setState('ready');
    this.#adapters.open();
    this.#trainers.open();
    this.#outbox.open(this.#ledger.entries());
    this.#compiles.open();
    this.#firstReady.resolve();
  }

  /** At the first start a fault of the settings or the model, which no second try mends; later on it counts as a crash. */
  #failed(message: string): void {
    if (this.#info !== null) return this.#log(`The engine could not start: ${message}`);
    this.#firstReady.reject(new Error(message));
    // The reason may name files: it is the operator's, not the clients'.
    this.#die('The engine could not start.');
  }

  #hangs(): void {
    this.#log('The engine process has not finished a step or a slice of training for too long; it is killed.');
    this.#child?.kill();
  }

  #crashed(how: string): void {
    this.#child = null;
    const trained = this.#trainers.busy;
    this.#adapters.close();
    this.#trainers.close();
    this.#outbox.close();
    this.#stats.endLife();
    if (this.#closed || this.#state === 'dead') return;
    this.#countCrash(trained);
    this.#ledger.crashed();
    this.#compiles.crashed();
    this.#noticeEmpty();
    if (this.#crashesInARow >= MAX_CRASHES) {
      this.#log(`The engine process ended (${how}) ${MAX_CRASHES} times in a row; it is not started again.`);
      this.#firstReady.reject(new Error(`The engine process ends at once (${how}).`));
      return this.#die('The engine is not running.');
    }
    if (this.#state !== 'draining') this.#setState(this.#info ? 'restarting' : 'starting');
    const backoffMs = Math.min(LAST_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** (this.#crashesInARow - 1));
    this.#log(`The engine process ended (${how}); it is started again in ${backoffMs} ms.`);
    this.#respawnTimer = setTimeout(() => this.#respawn(), backoffMs);
  }

  #respawn(): void {
    this.#respawnTimer = null;
    this.#restarts++;
    this.#spawn();
  }

  #countCrash(trained: boolean): void {
    const livedMs = this.#readySince === null ? 0 : performance.now() - this.#readySince;
    const done = this.#ledger.completed + this.#trainers.answers;
    const worked = done > this.#doneAtCrash || livedMs > STABLE_MS;
    this.#crashesInARow = worked ? 1 : Math.max(1, this.#crashesInARow + (trained ? 0 : 1));
    this.#doneAtCrash = done;
  }

  /** The end: whatever is still owed gets an error. */
  #die(error: string): void {
    this.#setState('dead');
    this.#watchdog.stop();
    this.#firstReady.reject(new EngineUnavailableError(error));
    this.#adapters.end(error);
    this.#trainers.end(error);
    this.#outbox.close();
    this.#ledger.failAll(error);
    this.#compiles.failAll(error);
    this.#noticeEmpty();
  }

  async #drain(timeoutMs: number): Promise<void> {
    if (this.#state === 'dead') return;
    this.#setState('draining');
    if (this.#ledger.size > 0) await this.#untilEmpty(timeoutMs);
    this.#closed = true;
    this.#stopRespawning();
    // With something left the engine would finish that first; it has had its time.
    if (this.#ledger.size === 0 && this.#readySince !== null) {
      this.#child?.send({ type: 'drain' });
      await Promise.race([this.#child?.exited, delay(EXIT_GRACE_MS)]);
    }
    await this.close();
  }

  #untilEmpty(timeoutMs: number): Promise<unknown> {
    const empty = new Promise<void>((resolve) => (this.#whenEmpty = resolve));
    return Promise.race([empty, delay(timeoutMs)]);
  }

  #noticeEmpty(): void {
    if (this.#ledger.size === 0) this.#whenEmpty?.();
  }

  #stopRespawning(): void {
    if (this.#respawnTimer) clearTimeout(this.#respawnTimer);
    this.#respawnTimer = null;
  }

  #setState(state: EngineState): void {
    if (state === this.#state) return;
    this.#state = state;
    this.#options.onStateChange?.(state);
  }

  #log(line: string): void {
    this.#options.log?.(line);
  }
}

/** Peers know the port by then, whoever chose it. */
function listeningAt(config: EngineConfig | LlamaConfig, port: number): EngineConfig | LlamaConfig {
  if ('engine' in config || !config.kvTransfer?.listen) return config;
  const { kvTransfer } = config;
  return { ...config, kvTransfer: { ...kvTransfer, listen: { host: config.kvTransfer.listen.host, port } } };
}

/** Does not keep the process alive. */
function delay(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms).unref());
}
