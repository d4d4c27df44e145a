/** One engine with its side of disaggregated serving, on the fake native engine: what it computes shows every wrong block. */
import { forEachOutput } from '../../../src/control/engine/outputs.ts';
import type { SequenceOutput, SequenceRequest } from '../../../src/control/engine/protocol.ts';
import type { SchedulerOptions } from '../../../src/control/scheduler/admission.ts';
import { AdapterGate } from '../../../src/control/engine/adapter-gate.ts';
import { AdapterStore } from '../../../src/control/engine/adapter-store.ts';
import { SchedulerLoop } from '../../../src/control/scheduler/loop.ts';
import { Scheduler } from '../../../src/control/scheduler/scheduler.ts';
import { KvTransfers } from '../../../src/control/transfer/kv-transfers.ts';
import type {
  BlockHandle,
  EngineIdentity,
  PeerAddress,
  TransferSettings,
  TransferStats,
} from '../../../src/control/transfer/transfer.ts';
import { options, VOCABULARY } from '../scheduler/drive.ts';
import { FakeNativeEngine } from '../scheduler/fake-native.mjs';

export const SECRET = 'a secret of peers';
/** Of the fake engine: 16 positions of 4 bytes. */
export const PAGE_BYTES = 64;
export const IDENTITY: EngineIdentity = {
  modelDigest: 'm',
  dtype: 'float32',
  isa: 'fake',
  pageBytes: PAGE_BYTES,
  pageSize: 16,
};

export interface NodeOptions {
  peers?: PeerAddress[];
  secret?: string;
  identity?: Partial<EngineIdentity>;
  timeoutMs?: number;
  holdMs?: number;
  holdShare?: number;
  /** A prompt that begins with this id goes wrong: its numbers are not finite. */
  nanPrompt?: number;
  scheduler?: Partial<SchedulerOptions>;
}

export interface Outcome {
  tokens: number[];
  finish: SequenceOutput['finish'];
  error: string | undefined;
  cachedTokens: number;
  blocks: BlockHandle | null;
}

/** Every adapter is there. */
const openAdapter = () => Promise.resolve({ bytes: 0, load: () => Promise.resolve({ bytes: 0, close: () => {} }) });

export class Node {
  readonly scheduler: Scheduler;
  readonly engine: FakeNativeEngine;
  readonly transfers: KvTransfers;
  readonly lines: string[];
  readonly loop: SchedulerLoop;
  readonly #outcomes = new Map<number, Outcome>();
  readonly #cached = new Map<number, number>();
  readonly #ended: Promise<void>;
  /** As the loop told last. */
  reported: TransferStats | undefined;
  pagesInUse = 0;
  onOutput: (output: SequenceOutput) => void = () => {};

  private constructor(scheduler: Scheduler, engine: FakeNativeEngine, transfers: KvTransfers, lines: string[]) {
    this.scheduler = scheduler;
    this.engine = engine;
    this.transfers = transfers;
    this.lines = lines;
    this.loop = new SchedulerLoop(
      scheduler,
      engine,
      (report) => {
        report.started.forEach((id, index) => this.#cached.set(id, report.cached[index] ?? 0));
        this.reported = report.stats.transfers;
        this.pagesInUse = report.stats.pagesUsed;
        forEachOutput({ type: 'step', ...report }, (output) => this.#take(output));
        return undefined;
      },
      { gate: transfers, adapters: new AdapterGate(new AdapterStore(openAdapter, 1, () => 0)) },
    );
    this.#ended = this.loop.run();
    this.#ended.catch(() => {});
  }

  static async start(asked: NodeOptions = {}): Promise<Node> {
    const { peers = [], secret = SECRET, timeoutMs = 5000, holdMs = 60_000, holdShare = 0.5 } = asked;
    const schedulerOptions = options({ holdMs, holdShare, ...asked.scheduler });
    const { maxSequences, maxBatchTokens, pages, maxModelLen, maxLogprobs } = schedulerOptions;
    const sizes = { maxSequences, maxBatchTokens, pages, maxModelLen, samplableVocab: VOCABULARY, maxLogprobs };
    const scheduler = new Scheduler(schedulerOptions);
    const engine = new FakeNativeEngine(sizes, asked.nanPrompt === undefined ? {} : { nanPrompt: asked.nanPrompt });
    const lines: string[] = [];
    const listen = { host: '127.0.0.1', port: 0 };
    const settings: TransferSettings = { listen, peers, secret, modelDigest: 'm', holdMs, holdShare, timeoutMs };
    const identity = { ...IDENTITY, ...asked.identity };
    const parts = { scheduler, engine, identity, log: (line: string) => void lines.push(line) };
    return new Node(scheduler, engine, await KvTransfers.start(settings, parts), lines);
  }

  get address(): PeerAddress {
    const { host, port } = this.transfers.handle([]);
    return { host, port };
  }

  async run(...requests: SequenceRequest[]): Promise<Outcome[]> {
    this.loop.submit(requests);
    const ended = () => requests.every(({ id }) => this.of(id).finish !== null);
    const polled = async () => {
      while (!ended()) await new Promise((resolve) => setTimeout(resolve, 1));
    };
    await Promise.race([polled(), this.#ended.then(() => Promise.reject(new Error('the loop has ended')))]);
    return requests.map(({ id }) => ({ ...this.of(id), cachedTokens: this.#cached.get(id) ?? 0 }));
  }

  of(id: number): Outcome {
    const outcome = this.#outcomes.get(id);
    if (outcome) return outcome;
    const fresh: Outcome = { tokens: [], finish: null, error: undefined, cachedTokens: 0, blocks: null };
    this.#outcomes.set(id, fresh);
    return fresh;
  }

  /** Ends when all is done; the loop checks the books of its pages when it is idle. */
  async close(): Promise<void> {
    this.loop.drain();
    await this.#ended;
  }

  /** As a process that is killed. */
  kill(): void {
    this.transfers.close();
    this.loop.stop();
  }

  #take(output: SequenceOutput): void {
    const outcome = this.of(output.id);
    outcome.tokens.push(...output.tokens);
    outcome.finish = output.finish;
    outcome.error = output.error;
    outcome.blocks = output.blocks ?? outcome.blocks;
    this.onOutput(output);
  }
}
