import { PAGE_SIZE } from '../engine/native.ts';
import type { IntBuffer } from './int-buffer.ts';

/** Pages that hold the given number of positions. */
export function pagesFor(positions: number): number {
  return Math.ceil(positions / PAGE_SIZE);
}

/** Holds pages that nobody reads at present but whose content may be wanted again. */
export interface PageKeeper {
  /** Pages held. */
  readonly kept: number;
  /** Those of them that may be given up for this tenant. */
  reclaimable(tenant: string): number;
  /** A page's last reader has let go. False: its content is not worth keeping. */
  keep(page: number): boolean;
  /** A kept page is read again. */
  revive(page: number): void;
  /** Gives up one kept page for this tenant, or returns -1; with `force` it finds one whenever there is any. */
  reclaim(tenant: string, force: boolean): number;
}

const NO_KEEPER: PageKeeper = {
  kept: 0,
  reclaimable: () => 0,
  keep: () => false,
  revive: (page) => {
    throw new Error(`KV page ${page} is not in use.`);
  },
  reclaim: () => -1,
};

/**
 * The KV pages of the engine by number. A page has one reference per sequence that reads it; when the last one lets go it
 * is kept for its content or free. Invariant: every page is either free or kept (count 0), or counted (count > 0).
 */
export class PagePool {
  readonly total: number;
  readonly #keeper: PageKeeper;
  /** A stack: the page freed last is used first, while it is still in the caches. */
  readonly #freeList: Int32Array;
  readonly #references: Int32Array;
  #freeCount: number;

  constructor(total: number, keeper: PageKeeper = NO_KEEPER) {
    if (!Number.isInteger(total) || total < 1)
      throw new RangeError(`A page pool needs at least one page, not ${total}.`);
    this.total = total;
    this.#keeper = keeper;
    this.#freeCount = total;
    this.#references = new Int32Array(total);
    this.#freeList = Int32Array.from({ length: total }, (_, index) => total - 1 - index);
  }

  /** Pages without a reader. */
  get free(): number {
    return this.#freeCount + this.#keeper.kept;
  }

  get used(): number {
    return this.total - this.free;
  }

  /** Pages that this tenant can get without `force`. */
  availableTo(tenant: string): number {
    return this.#freeCount + this.#keeper.reclaimable(tenant);
  }

  readers(page: number): number {
    return this.#references[page] as number;
  }

  /**
   * Appends `count` pages with one reference each, or none at all and returns false. `force` takes kept pages of other tenants
   * below their floor too.
   */
  allocate(count: number, into: IntBuffer, tenant = '', force = false): boolean {
    if (count > this.#freeCount && count > (force ? this.free : this.availableTo(tenant))) return false;
    for (let taken = 0; taken < count; taken++) {
      const page = this.#freeCount > 0 ? (this.#freeList[--this.#freeCount] as number) : this.#reclaim(tenant, force);
      this.#references[page] = 1;
      into.push(page);
    }
    return true;
  }

  /** Adds a reference to a page in use or kept. */
  share(page: number): void {
    if (this.#references[page] === 0) this.#keeper.revive(page);
    else this.#counted(page);
    this.#references[page] = (this.#references[page] as number) + 1;
  }

  /** Drops one reference of each page. */
  release(pages: Int32Array): void {
    // From the tail: of a sequence's pages the last become the first to be used again.
    for (let index = pages.length - 1; index >= 0; index--) this.#releaseOne(pages[index] as number);
  }

  /** Makes pages free that were kept until now. */
  discard(pages: Int32Array): void {
    for (const page of pages) this.#freeList[this.#freeCount++] = page;
  }

  /** Throws when the free list, the counts and the keeper contradict each other. */
  checkIntegrity(): void {
    const listed = new Uint8Array(this.total);
    for (const page of this.#freeList.subarray(0, this.#freeCount)) {
      if (listed[page] || this.#references[page] !== 0)
        throw new Error(`KV page ${page} is free twice or still in use.`);
      listed[page] = 1;
    }
    const counted = this.#references.reduce((sum, references) => sum + (references > 0 ? 1 : 0), 0);
    const { kept } = this.#keeper;
    if (this.#freeCount + kept + counted === this.total) return;
    throw new Error(`KV pages are lost: ${this.#freeCount} free + ${kept} kept + ${counted} used of ${this.total}.`);
  }

  #reclaim(tenant: string, force: boolean): number {
    const allowed = this.#keeper.reclaim(tenant, force);
    // With more tenants than pages to protect, giving pages up can raise the floor of those that are left.
    const page = allowed < 0 ? this.#keeper.reclaim(tenant, true) : allowed;
    if (page < 0) throw new Error('Fewer KV pages can be reclaimed than were counted.');
    return page;
  }

  #releaseOne(page: number): void {
    const left = this.#counted(page) - 1;
    this.#references[page] = left;
    if (left === 0 && !this.#keeper.keep(page)) this.#freeList[this.#freeCount++] = page;
  }

  #counted(page: number): number {
    const references = this.#references[page];
    if (references === undefined || references < 1) throw new Error(`KV page ${page} is not in use.`);
    return references;
  }
}
