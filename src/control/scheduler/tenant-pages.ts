/** The links of all tenants' lists; a page is in one list at most. */
export class PageLinks {
  readonly previous: Int32Array;
  readonly next: Int32Array;
  /** When the page was appended, as a count that only grows. */
  readonly order: Float64Array;
  #clock = 0;

  constructor(pages: number) {
    this.previous = new Int32Array(pages).fill(-1);
    this.next = new Int32Array(pages).fill(-1);
    this.order = new Float64Array(pages);
  }

  tick(): number {
    return ++this.#clock;
  }
}

/** One tenant's kept pages, the longest unused first. */
export class TenantPages {
  readonly tenant: string;
  /** When it last stored, kept or found a page, in ms. */
  usedAt = 0;
  readonly #links: PageLinks;
  #first = -1;
  #last = -1;
  #count = 0;

  constructor(tenant: string, links: PageLinks) {
    this.tenant = tenant;
    this.#links = links;
  }

  get count(): number {
    return this.#count;
  }

  /** The page to give up next; -1 without any. */
  get oldest(): number {
    return this.#first;
  }

  get oldestOrder(): number {
    return this.#first < 0 ? Infinity : (this.#links.order[this.#first] as number);
  }

  append(page: number): void {
    const { previous, next, order } = this.#links;
    order[page] = this.#links.tick();
    previous[page] = this.#last;
    next[page] = -1;
    if (this.#last < 0) this.#first = page;
    else next[this.#last] = page;
    this.#last = page;
    this.#count++;
  }

  remove(page: number): void {
    const { previous, next } = this.#links;
    const before = previous[page] as number;
    const after = next[page] as number;
    if (before < 0) this.#first = after;
    else next[before] = after;
    if (after < 0) this.#last = before;
    else previous[after] = before;
    this.#count--;
  }

  *[Symbol.iterator](): Generator<number> {
    for (let page = this.#first; page >= 0; page = this.#links.next[page] as number) yield page;
  }
}
