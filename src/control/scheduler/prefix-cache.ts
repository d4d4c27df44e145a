import type { PageKeeper } from './pages.ts';
import { PageLinks, TenantPages } from './tenant-pages.ts';

/** This part of the pool is divided into floors: one for each tenant that used its kept pages of late. */
const FLOOR_SHARE = 0.5;
/** A tenant that has not used its kept pages for so long loses its floor and is the first to give pages up. */
const FLOOR_LASTS_MS = 10 * 60_000;

/**
 * Which pages hold which blocks of tokens. Only full pages are stored, and a stored page is never written again. Pages without
 * a reader are kept in one list per tenant, least recently used first, and given up when pages are needed:
 *
 * 1. of tenants that have not used their pages for ten minutes, the least recently used;
 * 2. where the asking tenant keeps more than its quota, an equal share of the pool, its own;
 * 3. else the least recently used of its own and of those who keep more than their floor: half of the pool, divided equally.
 *
 * So the flood of one tenant evicts its own pages, and never another's below the floor. A sequence that is alone may take
 * floors too (`force`): without that it could never end.
 *
 * Invariant: a page has a key exactly while `#pageOf` names that page by this key.
 */
export class PrefixCache implements PageKeeper {
  readonly #total: number;
  readonly #now: () => number;
  readonly #links: PageLinks;
  readonly #pageOf = new Map<string, number>();
  readonly #keyOf: (string | null)[];
  /** '' where the page has no key. */
  readonly #tenantOf: string[];
  /** Tenants with kept pages. */
  readonly #tenants = new Map<string, TenantPages>();
  #kept = 0;
  #epoch = 0;

  /** `now` in ms. */
  constructor(total: number, now: () => number) {
    this.#total = total;
    this.#now = now;
    this.#links = new PageLinks(total);
    this.#keyOf = Array.from({ length: total }, () => null);
    this.#tenantOf = Array.from({ length: total }, () => '');
  }

  get kept(): number {
    return this.#kept;
  }

  /** Blocks that can be found. */
  get size(): number {
    return this.#pageOf.size;
  }

  /** Changes with every reset. A sequence that began under another one must not store: its chain has lost its beginning. */
  get epoch(): number {
    return this.#epoch;
  }

  /** The pages of the longest chain of the first `limit` keys, from the first key on. */
  find(keys: readonly string[], limit: number): number[] {
    const pages: number[] = [];
    for (let index = 0; index < limit; index++) {
      const page = this.#pageOf.get(keys[index] as string);
      if (page === undefined) break;
      pages.push(page);
    }
    return pages;
  }

  /** The page, which is being read, now holds this block. A block that is stored already stays where it is. */
  store(page: number, key: string, tenant: string): void {
    if (this.#pageOf.has(key) || this.#keyOf[page] !== null) return;
    this.#pageOf.set(key, page);
    this.#keyOf[page] = key;
    this.#tenantOf[page] = tenant;
  }

  keep(page: number): boolean {
    if (this.#keyOf[page] === null) return false;
    const list = this.#listOf(this.#tenantOf[page] as string);
    list.append(page);
    list.usedAt = this.#now();
    this.#kept++;
    return true;
  }

  revive(page: number): void {
    if (this.#keyOf[page] === null) throw new Error(`KV page ${page} is not in use.`);
    const list = this.#listOf(this.#tenantOf[page] as string);
    list.usedAt = this.#now();
    this.#takeOut(page, list);
  }

  reclaimable(tenant: string): number {
    const since = this.#activeSince();
    const floor = this.#floor(tenant, since);
    let others = 0;
    for (const list of this.#tenants.values()) {
      if (list.tenant !== tenant && list.usedAt >= since) others += Math.min(list.count, floor);
    }
    return this.#kept - others;
  }

  reclaim(tenant: string, force: boolean): number {
    const list = this.#victim(tenant) ?? (force ? this.#oldest(() => true) : null);
    if (!list) return -1;
    const page = list.oldest;
    this.#takeOut(page, list);
    this.#forget(page);
    return page;
  }

  /** Forgets all blocks. Returns the pages that were kept: they are free now. */
  reset(): Int32Array {
    const pages = Int32Array.from([...this.#tenants.values()].flatMap((list) => [...list]));
    this.#epoch++;
    this.#kept = 0;
    this.#pageOf.clear();
    this.#tenants.clear();
    this.#keyOf.fill(null);
    this.#tenantOf.fill('');
    return pages;
  }

  /** `isRead` tells whether a page has a reader. Throws when the books contradict each other. */
  checkIntegrity(isRead: (page: number) => boolean): void {
    for (const [key, page] of this.#pageOf) {
      if (this.#keyOf[page] !== key) throw new Error(`KV page ${page} does not hold the block that names it.`);
    }
    const keyed = this.#keyOf.filter((key) => key !== null).length;
    if (keyed !== this.#pageOf.size) throw new Error(`${keyed} KV pages hold ${this.#pageOf.size} blocks.`);
    let kept = 0;
    for (const list of this.#tenants.values()) {
      for (const page of list) {
        if (isRead(page) || this.#tenantOf[page] !== list.tenant || this.#keyOf[page] === null)
          throw new Error(`KV page ${page} is kept by mistake.`);
        kept++;
      }
    }
    if (kept !== this.#kept) throw new Error(`${kept} KV pages are kept, ${this.#kept} are counted.`);
  }

  #victim(tenant: string): TenantPages | null {
    const since = this.#activeSince();
    const stale = this.#oldest((list) => list.usedAt < since);
    if (stale) return stale;
    const own = this.#tenants.get(tenant);
    if (own && own.count > this.#total / this.#tenants.size) return own;
    const floor = this.#floor(tenant, since);
    return this.#oldest((list) => list === own || list.count > floor);
  }

  #oldest(eligible: (list: TenantPages) => boolean): TenantPages | null {
    let best: TenantPages | null = null;
    for (const list of this.#tenants.values()) {
      if (eligible(list) && list.oldestOrder < (best?.oldestOrder ?? Infinity)) best = list;
    }
    return best;
  }

  #activeSince(): number {
    return this.#now() - FLOOR_LASTS_MS;
  }

  /** The asking tenant counts as active whatever it keeps, so that its own evictions do not move the floor. */
  #floor(tenant: string, since: number): number {
    let active = 1;
    for (const list of this.#tenants.values()) if (list.usedAt >= since && list.tenant !== tenant) active++;
    return Math.floor((this.#total * FLOOR_SHARE) / active);
  }

  #listOf(tenant: string): TenantPages {
    const list = this.#tenants.get(tenant) ?? new TenantPages(tenant, this.#links);
    this.#tenants.set(tenant, list);
    return list;
  }

  #takeOut(page: number, list: TenantPages): void {
    list.remove(page);
    this.#kept--;
    if (list.count === 0) this.#tenants.delete(list.tenant);
  }

  #forget(page: number): void {
    this.#pageOf.delete(this.#keyOf[page] as string);
    this.#keyOf[page] = null;
    this.#tenantOf[page] = '';
  }
}
