import { PAGE_SIZE } from '../engine/native.ts';
import type { SequenceRequest } from '../engine/protocol.ts';
import { IntBuffer } from './int-buffer.ts';
import type { PagePool } from './pages.ts';
import type { Prefixes } from './prefixes.ts';
import { Sequence } from './sequence.ts';

/** Blocks of a prompt that come from outside: the pages for them, and what they will be found by. */
export interface BlockImport {
  readonly sequence: Sequence;
  /** Full blocks of the prompt that a sequence can begin with. */
  readonly blocks: number;
  /** The first blocks, which were here already; kept from being given up until the import ends. */
  readonly found: Int32Array;
  /** For those after them, empty until they are written. */
  readonly pages: Int32Array;
}

/** Makes room for blocks from outside and puts them where later sequences find them: into the prefix cache. */
export class BlockImports {
  readonly #pool: PagePool;
  readonly #prefixes: Prefixes;
  readonly #maxModelLen: number;
  readonly #open = new Set<BlockImport>();

  constructor(pool: PagePool, prefixes: Prefixes, maxModelLen: number) {
    this.#pool = pool;
    this.#prefixes = prefixes;
    this.#maxModelLen = maxModelLen;
  }

  /** Imports that have not ended. */
  get open(): number {
    return this.#open.size;
  }

  /** At most `most` blocks; null: there is no room for them. */
  begin(request: SequenceRequest, most: number): BlockImport | null {
    const sequence = new Sequence(request, this.#maxModelLen);
    const blocks = Math.min(most, Math.floor((sequence.promptLength - 1) / PAGE_SIZE));
    const found = Int32Array.from(this.#prefixes.find(sequence).slice(0, blocks));
    for (const page of found) this.#pool.share(page);
    const pages = new IntBuffer(blocks);
    if (!this.#pool.allocate(blocks - found.length, pages, sequence.tenant)) {
      this.#pool.release(found);
      return null;
    }
    sequence.epoch = this.#prefixes.epoch;
    const begun = { sequence, blocks, found, pages: pages.view().slice() };
    this.#open.add(begun);
    return begun;
  }

  /** Every page has been written: they can be found from now on. */
  commit(each: BlockImport): void {
    this.#prefixes.adopt(each.sequence, each.found.length, each.pages);
    this.drop(each);
  }

  /** Lets all pages go. */
  drop(each: BlockImport): void {
    if (!this.#open.delete(each)) return;
    this.#pool.release(each.pages);
    this.#pool.release(each.found);
  }

  /** Pages of imports that have not ended. */
  distinctPages(): Set<number> {
    return new Set([...this.#open].flatMap(({ found, pages }) => [...found, ...pages]));
  }
}
