import { randomUUID } from 'node:crypto';
import type { NativeEngine } from '../engine/native.ts';
import { PAGE_SIZE } from '../engine/native.ts';
import type { SequenceRequest } from '../engine/protocol.ts';
import type { SubmitGate } from '../scheduler/loop.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import { pullBlocks } from './pull-client.ts';
import { scopeDigest, tokensDigest, type PullRequest } from './pull-protocol.ts';
import { PullTurns } from './pull-turns.ts';
import { PullServer, type BlockSource, type Loan } from './pull-server.ts';
import {
  addressText,
  type BlockHandle,
  type EngineIdentity,
  type PeerAddress,
  type TransferSettings,
  type TransferStats,
} from './transfer.ts';

const EXPIRY_CHECK_MS = 1000;

export interface TransferParts {
  scheduler: Scheduler;
  engine: NativeEngine;
  identity: EngineIdentity;
  log: (line: string) => void;
}

/** One pull, for all sequences that begin with the same blocks: the choices of a request. */
interface Pull {
  /** By sequence id: continues with what there is then. */
  readonly waiting: Map<number, () => void>;
  readonly controller: AbortController;
}

/**
 * Both sides of disaggregated serving in the engine process. As a holder it gives peers the blocks of prompts that were computed
 * for them; as a peer it pulls blocks into the prefix cache before the sequence that wants them is submitted. Whatever goes
 * wrong with a pull, the sequence runs: what is missing is computed.
 */
export class KvTransfers implements SubmitGate, BlockSource {
  readonly engineId = randomUUID();
  readonly identity: EngineIdentity;
  onChange: () => void = () => {};
  readonly #settings: TransferSettings;
  readonly #parts: TransferParts;
  readonly #pulls = new Map<string, Pull>();
  readonly #turns = new PullTurns();
  readonly #expiry: NodeJS.Timeout;
  #server: PullServer | null = null;
  #address: PeerAddress | null = null;
  #counts = { pulls: 0, pullFailures: 0, pulledTokens: 0, served: 0 };

  private constructor(settings: TransferSettings, parts: TransferParts) {
    this.#settings = settings;
    this.#parts = parts;
    this.identity = parts.identity;
    this.#expiry = setInterval(() => this.#expire(), EXPIRY_CHECK_MS).unref();
  }

  /** Rejects when the address to listen on cannot be had. */
  static async start(settings: TransferSettings, parts: TransferParts): Promise<KvTransfers> {
    const transfers = new KvTransfers(settings, parts);
    if (settings.listen) await transfers.#listen(settings.listen);
    return transfers;
  }

  /** Where peers pull; undefined where they may not. */
  get port(): number | undefined {
    return this.#address?.port;
  }

  get size(): number {
    return [...this.#pulls.values()].reduce((sum, { waiting }) => sum + waiting.size, 0);
  }

  get stats(): TransferStats {
    return { ...this.#counts, heldBlocks: this.#parts.scheduler.holds.pages };
  }

  enter(request: SequenceRequest, pass: () => void): boolean {
    if (!request.kvTransfer || !('pull' in request.kvTransfer)) return false;
    const handle = request.kvTransfer.pull;
    const { tenant, adapter, cacheSalt = null, promptIds } = request;
    const key = JSON.stringify([handle, tenant, adapter?.version ?? '', cacheSalt, tokensDigest(promptIds)]);
    const pull = this.#pulls.get(key) ?? this.#begin(key, request, handle);
    pull.waiting.set(request.id, pass);
    return true;
  }

  cancel(id: number): boolean {
    for (const [key, { waiting, controller }] of this.#pulls) {
      if (!waiting.delete(id)) continue;
      if (waiting.size > 0) return true;
      // Whoever asks for the same from now on starts afresh.
      this.#pulls.delete(key);
      controller.abort();
      return true;
    }
    return false;
  }

  handle(blockIds: number[]): BlockHandle {
    if (!this.#address) throw new Error('Nothing is held where nobody may pull.');
    return { ...this.#address, engineId: this.engineId, blockIds };
  }

  lend(request: PullRequest): Loan | string {
    const { holds } = this.#parts.scheduler;
    const wanted = request.blockIds;
    const hold = holds.find(
      ({ pages, scope, tokens }) =>
        pages.length === wanted.length &&
        pages.every((page, index) => page === wanted[index]) &&
        scopeDigest(scope) === request.scope &&
        tokensDigest(tokens) === request.tokens,
    );
    if (!hold) return 'these blocks are not held for it';
    const pages = hold.pages.slice(request.skip, request.skip + request.count);
    const giveBack = holds.lend(pages);
    return {
      pages,
      tokens: tokensDigest(hold.tokens),
      giveBack: (pulled) => {
        giveBack();
        if (!pulled) return;
        holds.release(hold);
        this.#counts.served++;
        this.onChange();
      },
    };
  }

  read(pages: Int32Array): Promise<Uint8Array> {
    return this.#parts.engine.readPages(pages);
  }

  close(): void {
    clearInterval(this.#expiry);
    this.#server?.close();
    for (const { waiting, controller } of this.#pulls.values()) {
      waiting.clear();
      controller.abort();
    }
  }

  #expire(): void {
    const { holds } = this.#parts.scheduler;
    const before = holds.pages;
    holds.expire();
    if (holds.pages !== before) this.onChange();
  }

  async #listen(address: PeerAddress): Promise<void> {
    const { secret, timeoutMs } = this.#settings;
    this.#server = new PullServer(this, { secret, timeoutMs, log: this.#parts.log });
    try {
      this.#address = { host: address.host, port: await this.#server.listen(address) };
    } catch (error) {
      this.close();
      const why = error instanceof Error ? error.message : String(error);
      throw new Error(`--kv-host and --kv-port: cannot listen on ${addressText(address)} (${why}).`);
    }
  }

  #begin(key: string, request: SequenceRequest, handle: BlockHandle): Pull {
    const pull: Pull = { waiting: new Map(), controller: new AbortController() };
    this.#pulls.set(key, pull);
    void this.#run(request, handle, pull).finally(() => {
      if (this.#pulls.get(key) === pull) this.#pulls.delete(key);
      for (const pass of pull.waiting.values()) pass();
      // No step follows that would tell of the pages that it had.
      if (pull.controller.signal.aborted) this.onChange();
    });
    return pull;
  }

  /** Never rejects. It waits for its turn and pulls within one time. */
  async #run(request: SequenceRequest, handle: BlockHandle, { controller: { signal } }: Pull): Promise<void> {
    const until = performance.now() + this.#settings.timeoutMs;
    const left = () => Math.max(1, until - performance.now());
    try {
      const end = await this.#turns.take(addressText(handle), request.tenant, left(), signal);
      await this.#pull(request, handle, { signal, timeoutMs: left() }).finally(end);
      this.#counts.pulls++;
    } catch (error) {
      if (!signal.aborted) this.#noteFailure(error);
    }
  }

  #noteFailure(error: unknown): void {
    this.#counts.pullFailures++;
    const why = error instanceof Error ? error.message : String(error);
    this.#parts.log(`A pull of KV blocks failed, so the prompt is computed here: ${why}`);
  }

  async #pull(
    request: SequenceRequest,
    handle: BlockHandle,
    bounds: { signal: AbortSignal; timeoutMs: number },
  ): Promise<void> {
    const { scheduler, engine, identity } = this.#parts;
    const { secret, peers } = this.#settings;
    const peer = peers.find(({ host, port }) => host === handle.host && port === handle.port);
    // The server's process refuses these; whatever comes here, nobody else is contacted.
    if (!peer) throw new Error(`${addressText(handle)} is not among --kv-peers.`);
    const { engineId, blockIds } = handle;
    const tokens = request.promptIds.slice(0, blockIds.length * PAGE_SIZE);
    if (tokens.length < blockIds.length * PAGE_SIZE) throw new Error('the blocks are of a longer prompt.');
    const begun = scheduler.imports.begin(request, blockIds.length);
    if (!begun) throw new Error('there is no room for the blocks in the KV cache.');
    const skip = begun.found.length;
    const count = begun.pages.length;
    const scope = scopeDigest(begun.sequence.scope);
    const asked = { identity, engineId, blockIds, scope, tokens: tokensDigest(tokens), skip, count };
    try {
      let written = 0;
      const take = async (blocks: number, bytes: Uint8Array) => {
        await engine.writePages(begun.pages.slice(written, written + blocks), bytes);
        written += blocks;
      };
      await pullBlocks(peer, asked, { secret, ...bounds, take });
      scheduler.imports.commit(begun);
      this.#counts.pulledTokens += count * PAGE_SIZE;
    } finally {
      scheduler.imports.drop(begun);
    }
  }
}
