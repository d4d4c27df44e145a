/** What waits for a thread, tenants in turn: whoever sends much waits behind his own, and another's next is at most one turn of each away. */
export class Turns<Item> {
  readonly #max: number;
  /** Of tenants that wait, in the order of their turns. Oldest first within a tenant. */
  readonly #queues = new Map<string, Item[]>();
  #size = 0;

  /** `max`: items that may wait; beyond them each tenant may still have its equal share of as many. */
  constructor(max: number) {
    this.#max = max;
  }

  /** False where it may not wait. */
  push(tenant: string, item: Item): boolean {
    const queue = this.#queues.get(tenant) ?? [];
    const tenants = this.#queues.size + (queue.length === 0 ? 1 : 0);
    if (this.#size >= this.#max && queue.length * tenants >= this.#max) return false;
    queue.push(item);
    this.#queues.set(tenant, queue);
    this.#size++;
    return true;
  }

  take(): Item | undefined {
    const [next] = this.#queues;
    if (!next) return undefined;
    const [tenant, queue] = next;
    const item = queue.shift();
    this.#size--;
    this.#queues.delete(tenant);
    if (queue.length > 0) this.#queues.set(tenant, queue);
    return item;
  }

  /** Empties it. */
  takeAll(): Item[] {
    const items = [...this.#queues.values()].flat();
    this.#queues.clear();
    this.#size = 0;
    return items;
  }
}
