import { PAGE_SIZE } from '../engine/native.ts';
import type { CacheScope } from './block-hash.ts';
import type { PagePool } from './pages.ts';
import type { Sequence } from './sequence.ts';

/** Pages of a finished sequence's prompt that stay until a peer has pulled them. */
export interface Hold {
  readonly pages: Int32Array;
  readonly scope: CacheScope;
  /** The tokens of these pages. */
  readonly tokens: Int32Array;
  readonly expiresAt: number;
}

/**
 * Holds pages for peers, for a bounded time and in bounded number: the oldest hold of the tenant that holds most gives way to a
 * new one, so that nobody's flood takes what others wait for. Pages of holds have readers as pages of sequences do, so nobody
 * writes to them.
 */
export class Holds {
  readonly #pool: PagePool;
  readonly #maxPages: number;
  readonly #holdMs: number;
  readonly #now: () => number;
  /** The oldest first. */
  readonly #holds = new Set<Hold>();
  /** Pages on their way to a peer. */
  readonly #loans = new Set<Int32Array>();
  /** Of tenants that hold some. */
  readonly #byTenant = new Map<string, number>();
  #pages = 0;
  /** Those that were added since they were taken last. */
  #kept: { id: number; blockIds: number[] }[] = [];

  constructor(pool: PagePool, options: { maxPages: number; holdMs: number; now: () => number }) {
    this.#pool = pool;
    this.#maxPages = options.maxPages;
    this.#holdMs = options.holdMs;
    this.#now = options.now;
  }

  get enabled(): boolean {
    return this.#maxPages > 0;
  }

  /** Pages that are being sent to peers, in groups. */
  get loans(): number {
    return this.#loans.size;
  }

  /** Pages held, those of several holds once for each. */
  get pages(): number {
    return this.#pages;
  }

  /** Holds the blocks of a sequence's prompt; it has computed them. */
  keep(sequence: Sequence): void {
    if (!this.enabled) return;
    const blocks = Math.floor(sequence.promptLength / PAGE_SIZE);
    const pages = sequence.pages.view(0, blocks).slice();
    const tokens = sequence.tokens(0, blocks * PAGE_SIZE).slice();
    if (this.add(pages, sequence.scope, tokens)) this.#kept.push({ id: sequence.id, blockIds: [...pages] });
  }

  /** Sequences that ended since the last call and whose prompts' blocks are held. */
  takeKept(): { id: number; blockIds: number[] }[] {
    const kept = this.#kept;
    this.#kept = [];
    return kept;
  }

  /** False: that many are never held. */
  add(pages: Int32Array, scope: CacheScope, tokens: Int32Array): boolean {
    if (pages.length > this.#maxPages) return false;
    if (pages.length === 0) return true;
    while (this.#pages + pages.length > this.#maxPages) this.releaseOldest(scope.tenant, pages.length);
    for (const page of pages) this.#pool.share(page);
    this.#holds.add({ pages, scope, tokens, expiresAt: this.#now() + this.#holdMs });
    this.#count(scope.tenant, pages.length);
    return true;
  }

  find(fits: (hold: Hold) => boolean): Hold | undefined {
    return [...this.#holds].find(fits);
  }

  /** Idempotent. */
  release(hold: Hold): void {
    if (!this.#holds.delete(hold)) return;
    this.#count(hold.scope.tenant, -hold.pages.length);
    this.#pool.release(hold.pages);
  }

  /** Of the tenant that holds most, one of them counted with `wanted` more. False: there is none. */
  releaseOldest(tenant = '', wanted = 0): boolean {
    let oldest: Hold | undefined;
    let most = 0;
    for (const hold of this.#holds) {
      const { tenant: holder } = hold.scope;
      const held = (this.#byTenant.get(holder) ?? 0) + (holder === tenant ? wanted : 0);
      if (held > most) [oldest, most] = [hold, held];
    }
    if (oldest) this.release(oldest);
    return oldest !== undefined;
  }

  expire(): void {
    const now = this.#now();
    for (const hold of this.#holds) {
      if (hold.expiresAt > now) return;
      this.release(hold);
    }
  }

  /** Keeps these pages of a hold, whatever becomes of it, until the returned function is called (once). */
  lend(pages: Int32Array): () => void {
    for (const page of pages) this.#pool.share(page);
    this.#loans.add(pages);
    return () => {
      if (this.#loans.delete(pages)) this.#pool.release(pages);
    };
  }

  /** Of holds and loans, each once. */
  distinctPages(): Set<number> {
    return new Set([...[...this.#holds].map(({ pages }) => pages), ...this.#loans].flatMap((pages) => [...pages]));
  }

  #count(tenant: string, pages: number): void {
    this.#pages += pages;
    const held = (this.#byTenant.get(tenant) ?? 0) + pages;
    if (held === 0) this.#byTenant.delete(tenant);
    else this.#byTenant.set(tenant, held);
  }
}
