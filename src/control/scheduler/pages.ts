import type { IntBuffer } from './int-buffer.ts';
import { PAGE_SIZE } from '../engine/native.ts';

/** Pages that hold the given number of positions. */
export function pagesFor(positions: number): number {
  return Math.ceil(positions / PAGE_SIZE);
}

/**
 * The KV pages of the engine by number. A page has one reference per sequence that reads it; it is free again when the
 * last one lets go. Invariant: every page is either in the free list (count 0) or counted (count > 0), never both.
 */
export class PagePool {
  readonly total: number;
  /** A stack: the page freed last is used first, while it is still in the caches. */
  readonly #freeList: Int32Array;
  readonly #references: Int32Array;
  #freeCount: number;

  constructor(total: number) {
    if (!Number.isInteger(total) || total < 1)
      throw new RangeError(`A page pool needs at least one page, not ${total}.`);
    this.total = total;
    this.#freeCount = total;
    this.#references = new Int32Array(total);
    this.#freeList = Int32Array.from({ length: total }, (_, index) => total - 1 - index);
  }

  get free(): number {
    return this.#freeCount;
  }

  get used(): number {
    return this.total - this.#freeCount;
  }

  /** Appends `count` pages with one reference each, or none at all and returns false. */
  allocate(count: number, into: IntBuffer): boolean {
    if (count > this.#freeCount) return false;
    for (let taken = 0; taken < count; taken++) {
      const page = this.#freeList[--this.#freeCount] as number;
      this.#references[page] = 1;
      into.push(page);
    }
    return true;
  }

  /** Adds a reference to a page in use. */
  share(page: number): void {
    this.#references[page] = this.#counted(page) + 1;
  }

  /** Drops one reference of each page. */
  release(pages: Int32Array): void {
    // From the tail: of a sequence's pages the last become the first to be used again.
    for (let index = pages.length - 1; index >= 0; index--) this.#releaseOne(pages[index] as number);
  }

  /** Throws when the free list and the counts contradict each other. */
  checkIntegrity(): void {
    const listed = new Uint8Array(this.total);
    for (const page of this.#freeList.subarray(0, this.#freeCount)) {
      if (listed[page] || this.#references[page] !== 0)
        throw new Error(`KV page ${page} is free twice or still in use.`);
      listed[page] = 1;
    }
    const counted = this.#references.reduce((sum, references) => sum + (references > 0 ? 1 : 0), 0);
    if (this.#freeCount + counted === this.total) return;
    throw new Error(`KV pages are lost: ${this.#freeCount} free + ${counted} used of ${this.total}.`);
  }

  #releaseOne(page: number): void {
    const left = this.#counted(page) - 1;
    this.#references[page] = left;
    if (left === 0) this.#freeList[this.#freeCount++] = page;
  }

  #counted(page: number): number {
    const references = this.#references[page];
    if (references === undefined || references < 1) throw new Error(`KV page ${page} is not in use.`);
    return references;
  }
}
