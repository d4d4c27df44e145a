import { PAGE_SIZE } from '../engine/native.ts';
import { BlockHasher } from './block-hash.ts';
import type { PagePool } from './pages.ts';
import type { PrefixCache } from './prefix-cache.ts';
import type { Sequence } from './sequence.ts';

const NOTHING: readonly number[] = [];

/** Between sequences and the prefix cache: which pages a sequence can begin with, and which of its own it stores. */
export class Prefixes {
  readonly #enabled: boolean;
  readonly #cache: PrefixCache;
  readonly #pool: PagePool;
  readonly #hasher = new BlockHasher();
  /** Keys of the blocks that running sequences compute next; made anew for each plan that admits. */
  readonly #coming = new Set<string>();
  #queries = 0;
  #hits = 0;

  constructor(enabled: boolean, cache: PrefixCache, pool: PagePool) {
    this.#enabled = enabled;
    this.#cache = cache;
    this.#pool = pool;
  }

  /** Tokens looked up and found when sequences first began to run. */
  get counters(): { prefixCacheQueries: number; prefixCacheHits: number } {
    return { prefixCacheQueries: this.#queries, prefixCacheHits: this.#hits };
  }

  /** Hashes the prompt ahead of the first lookup: on arrival a step may be running, between steps nothing is. */
  prepare(sequence: Sequence): void {
    if (this.#enabled) sequence.blockKeys(this.#hasher);
  }

  /** Cached pages that the sequence can begin with. One token at least is left to compute: it gives the first logits. */
  find(sequence: Sequence): readonly number[] {
    if (!this.#looksUp(sequence)) return NOTHING;
    const limit = Math.floor(sequence.reusable / PAGE_SIZE);
    return this.#cache.find(sequence.blockKeys(this.#hasher), limit);
  }

  /** Call once per plan before `isComing`. */
  beginPlan(running: readonly Sequence[]): void {
    this.#coming.clear();
    for (const sequence of running) this.addComing(sequence);
  }

  addComing(sequence: Sequence): void {
    if (!this.#stores(sequence) || sequence.stored >= sequence.fullBlocks) return;
    this.#coming.add(sequence.blockKeys(this.#hasher)[sequence.stored] as string);
  }

  /**
   * A running sequence is about to compute the very block that this one misses first: the other choices of a request wait for
   * the first one's prompt rather than compute it again.
   */
  isComing(sequence: Sequence, found: readonly number[]): boolean {
    if (!this.#looksUp(sequence) || this.#coming.size === 0) return false;
    if ((found.length + 1) * PAGE_SIZE > sequence.reusable) return false;
    return this.#coming.has(sequence.blockKeys(this.#hasher)[found.length] as string);
  }

  /** The sequence begins with these pages: they count as fed. */
  attach(sequence: Sequence, found: readonly number[]): void {
    for (const page of found) {
      this.#pool.share(page);
      sequence.pages.push(page);
    }
    sequence.stored = found.length;
    sequence.planned = found.length * PAGE_SIZE;
    sequence.epoch = this.#cache.epoch;
    if (sequence.started) return;
    sequence.cachedTokens = Math.min(sequence.planned, sequence.promptLength);
    if (!this.#looksUp(sequence)) return;
    this.#queries += sequence.promptLength;
    this.#hits += sequence.cachedTokens;
  }

  /** The engine has computed the sequence up to this position: full pages, prompt or output, can be found from now on. */
  storeTo(sequence: Sequence, position: number): void {
    const blocks = Math.floor(position / PAGE_SIZE);
    if (sequence.stored >= blocks || !this.#stores(sequence)) return;
    const keys = sequence.blockKeys(this.#hasher);
    for (let block = sequence.stored; block < blocks; block++) {
      this.#cache.store(sequence.pages.at(block), keys[block] as string, sequence.tenant);
    }
    sequence.stored = blocks;
  }

  get epoch(): number {
    return this.#cache.epoch;
  }

  /** Pages that somebody else has filled with the sequence's blocks from `first` on can be found from now on. */
  adopt(sequence: Sequence, first: number, pages: Int32Array): void {
    if (!this.#stores(sequence)) return;
    const keys = sequence.blockKeys(this.#hasher);
    pages.forEach((page, index) => this.#cache.store(page, keys[first + index] as string, sequence.tenant));
  }

  /** Nothing that was computed before is found again. Sequences that run keep their pages and store no more. */
  reset(): void {
    this.#pool.discard(this.#cache.reset());
  }

  #looksUp(sequence: Sequence): boolean {
    return this.#enabled && !sequence.scoresPrompt;
  }

  #stores(sequence: Sequence): boolean {
    return this.#enabled && sequence.epoch === this.#cache.epoch;
  }
}
