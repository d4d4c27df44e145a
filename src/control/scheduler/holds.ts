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
 * new one, and a new one by which its tenant would hold most itself is not taken, so that neither a flood nor a long prompt takes
 * what others wait for. Pages of holds have readers as pages of sequences do, so nobody
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

  /** False, and nothing gave way: so many are never held, or not beside what others hold. */
  add(pages: Int32Array, scope: CacheScope, tokens: Int32Array): boolean {
    if (pages.length > this.#maxPages) return false;
    if (pages.length === 0) return true;
    const leaving = this.#leaving(scope.tenant, pages.length);
    if (leaving === null) return false;
    for (const hold of leaving) this.release(hold);
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

  /** Of the tenant that holds most. False: there is none. */
  releaseOldest(): boolean {
    const oldest = oldestOfMost(this.#holds, this.#byTenant);
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

  /** What makes room for so many more of a tenant; null: it would then hold more than any other, with nothing of its own left to give up. */
  #leaving(tenant: string, wanted: number): Hold[] | null {
    const leaving: Hold[] = [];
    const staying = new Set(this.#holds);
    const counts = new Map(this.#byTenant);
    count(counts, tenant, wanted);
    for (let over = this.#pages + wanted - this.#maxPages; over > 0;) {
      const oldest = oldestOfMost(staying, counts);
      if (oldest === undefined || (counts.get(tenant) ?? 0) > (counts.get(oldest.scope.tenant) ?? 0)) return null;
      leaving.push(oldest);
      staying.delete(oldest);
      count(counts, oldest.scope.tenant, -oldest.pages.length);
      over -= oldest.pages.length;
    }
    return leaving;
  }

  #count(tenant: string, pages: number): void {
    this.#pages += pages;
    count(this.#byTenant, tenant, pages);
  }
}

function count(byTenant: Map<string, number>, tenant: string, pages: number): void {
  const held = (byTenant.get(tenant) ?? 0) + pages;
  if (held === 0) byTenant.delete(tenant);
  else byTenant.set(tenant, held);
}

/** Of the tenants that have some. */
function oldestOfMost(holds: Iterable<Hold>, byTenant: ReadonlyMap<string, number>): Hold | undefined {
  let oldest: Hold | undefined;
  let most = 0;
  for (const hold of holds) {
    const held = byTenant.get(hold.scope.tenant) ?? 0;
    if (held > most) [oldest, most] = [hold, held];
  }
  return oldest;
}
