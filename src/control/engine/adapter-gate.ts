/**
 * Where sequences wait for their adapter before they join the queue. Loads run one at a time, between and beside steps, tenants in turn:
 * whoever names many adapters waits behind his own. When memory is full of adapters in use, the first that waits for room holds back all that
 * came after it: those in use could otherwise be kept in use for ever.
 */
import type { AdapterStore, PinnedAdapter } from './adapter-store.ts';
import type { AdapterStats, SequenceRequest } from './protocol.ts';
import type { AdapterRef } from './training.ts';

interface Waiting {
  /** null: somebody wants the adapter loaded, with no sequence yet. */
  id: number | null;
  adapter: AdapterRef;
  /** null: the server's own. */
  tenant: string | null;
  /** Tenants have one load in each. */
  round: number;
  ready(pinned: PinnedAdapter): void;
  failed(message: string): void;
}

const CANCELLED = 'The loading of this adapter was cancelled.';

export class AdapterGate {
  readonly #store: AdapterStore;
  /** Rounds ascend; in order of arrival within one. */
  #waiting: Waiting[] = [];
  /** Of the last load. */
  #round = 0;
  #loading = false;
  /** The first one that found no room. */
  #blocked: Waiting | null = null;

  constructor(store: AdapterStore) {
    this.#store = store;
    store.onRelease = () => {
      if (this.#waiting.length === 0) return;
      this.#blocked = null;
      // Sequences end in the middle of the scheduler's work.
      queueMicrotask(() => this.#pump());
    };
  }

  /** Sequences that wait here. */
  get size(): number {
    return this.#waiting.reduce((count, { id }) => count + (id === null ? 0 : 1), 0);
  }

  get stats(): AdapterStats {
    return this.#store.stats;
  }

  /** Called when other adapters are in memory than before. */
  set onChange(changed: () => void) {
    this.#store.onChange = changed;
  }

  /** One of the two is called, perhaps at once; neither after `remove`. The pin is the sequence's. */
  add(
    request: SequenceRequest,
    adapter: AdapterRef,
    ready: (pinned: PinnedAdapter) => void,
    failed: (message: string) => void,
  ): void {
    this.#enter({ id: request.id, tenant: request.tenant, adapter, ready, failed });
  }

  remove(id: number): void {
    this.#forget((each) => each.id === id);
  }

  /** Resolves when the adapter is in memory; rejects where the signal is aborted before. */
  load(adapter: AdapterRef, signal?: AbortSignal, tenant: string | null = null): Promise<void> {
    if (signal?.aborted) return Promise.reject(new Error(CANCELLED));
    this.#store.want(adapter.version);
    return new Promise((resolve, reject) => {
      let entered: Waiting | null = null;
      const leave = () => {
        this.#forget((each) => each === entered);
        reject(new Error(CANCELLED));
      };
      const ready = (pinned: PinnedAdapter) => {
        signal?.removeEventListener('abort', leave);
        resolve();
        pinned.release();
      };
      signal?.addEventListener('abort', leave, { once: true });
      const failed = (message: string) => reject(new Error(message));
      entered = this.#enter({ id: null, tenant, adapter, ready, failed });
    });
  }

  /** Sequences that wait for it, or still come, load it again for themselves. */
  unload(version: string): void {
    this.#store.unload(version);
  }

  #enter(comer: Omit<Waiting, 'round'>): Waiting {
    let round = this.#round;
    for (const { tenant, adapter, round: taken } of this.#waiting) {
      if (tenant !== comer.tenant) continue;
      const shared = adapter.version === comer.adapter.version;
      round = Math.max(round, shared ? taken : taken + 1);
    }
    const at = this.#waiting.findLastIndex((each) => each.round <= round) + 1;
    const entered = { ...comer, round };
    this.#waiting.splice(at, 0, entered);
    this.#pump();
    return entered;
  }

  #forget(gone: (each: Waiting) => boolean): void {
    this.#waiting = this.#waiting.filter((each) => !gone(each));
    this.#pump();
  }

  /** Lets in what is in memory and starts the next load. */
  #pump(): void {
    let next: Waiting | null = null;
    const kept: Waiting[] = [];
    const admitted: [Waiting, PinnedAdapter][] = [];
    let held = false;
    for (const each of this.#waiting) {
      held ||= each === this.#blocked;
      const pinned = held ? null : this.#store.pin(each.adapter.version);
      if (pinned) admitted.push([each, pinned]);
      else kept.push(each);
      if (!pinned && !held) next ??= each;
    }
    this.#waiting = kept;
    if (next && !this.#loading) void this.#load(next);
    for (const [each, pinned] of admitted) each.ready(pinned);
  }

  async #load(first: Waiting): Promise<void> {
    this.#loading = true;
    this.#round = first.round;
    const { version } = first.adapter;
    try {
      if (!(await this.#store.load(first.adapter)) && this.#waiting.includes(first)) this.#blocked = first;
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      const failed = this.#waiting.filter(({ adapter }) => adapter.version === version);
      this.#waiting = this.#waiting.filter(({ adapter }) => adapter.version !== version);
      for (const each of failed) each.failed(message);
    }
    this.#loading = false;
    this.#pump();
    // Unloaded while it was read, and whoever wanted it has left.
    this.#store.dropUnwanted(version);
  }
}
