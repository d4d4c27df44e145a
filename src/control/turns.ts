import { SharedBound } from './shared-bound.ts';

/** What waits for a thread, tenants in turn: whoever sends much waits behind his own, and another's next is at most one turn of each away. */
export class Turns<Item> {
  readonly #bound: SharedBound;
  /** Of tenants that wait, in the order of their turns. Oldest first within a tenant. */
  readonly #queues = new Map<string, Item[]>();

  /** `max`: items that may wait, as a shared bound. */
  constructor(max: number) {
    this.#bound = new SharedBound(max);
  }

  /** False where it may not wait. */
  push(tenant: string, item: Item): boolean {
    if (!this.#bound.fits(tenant, 1)) return false;
    const queue = this.#queues.get(tenant) ?? [];
    queue.push(item);
    this.#queues.set(tenant, queue);
    this.#bound.add(tenant, 1);
    return true;
  }

  /** `may`: whose turn it may be. */
  take(may: (tenant: string) => boolean = () => true): Item | undefined {
    for (const [tenant, queue] of this.#queues) {
      if (!may(tenant)) continue;
      const item = queue.shift();
      this.#bound.add(tenant, -1);
      this.#queues.delete(tenant);
      if (queue.length > 0) this.#queues.set(tenant, queue);
      return item;
    }
    return undefined;
  }

  /** Empties it. */
  takeAll(): Item[] {
    const items = [...this.#queues.values()].flat();
    for (const [tenant, queue] of this.#queues) this.#bound.add(tenant, -queue.length);
    this.#queues.clear();
    return items;
  }
}
