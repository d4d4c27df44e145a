import type { Sequence } from './sequence.ts';
import type { WaitingQueue } from './waiting.ts';

/** A binary heap: the least `rank` first, then the first to arrive. A preempted sequence has kept both. */
export class HeapQueue implements WaitingQueue {
  #heap: Sequence[] = [];
  /** Removed from the middle: dropped when they come up, so that an abort costs no search. */
  readonly #removed = new Set<Sequence>();

  get size(): number {
    return this.#heap.length - this.#removed.size;
  }

  push(sequence: Sequence): void {
    this.#heap.push(sequence);
    this.#rise(this.#heap.length - 1);
  }

  requeue(sequence: Sequence): void {
    this.push(sequence);
  }

  peek(): Sequence | undefined {
    for (;;) {
      const top = this.#heap[0];
      if (!top || !this.#removed.delete(top)) return top;
      this.#dropTop();
    }
  }

  take(): Sequence | undefined {
    const top = this.peek();
    if (top) this.#dropTop();
    return top;
  }

  remove(sequence: Sequence): void {
    this.#removed.add(sequence);
    if (this.#removed.size <= 64 || 2 * this.#removed.size <= this.#heap.length) return;
    const kept = this.#heap.filter((each) => !this.#removed.has(each));
    this.#removed.clear();
    this.#heap = [];
    for (const each of kept) this.push(each);
  }

  #dropTop(): void {
    const last = this.#heap.pop() as Sequence;
    if (this.#heap.length === 0) return;
    this.#heap[0] = last;
    this.#sink(0);
  }

  #rise(index: number): void {
    const heap = this.#heap;
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (!before(heap[index] as Sequence, heap[parent] as Sequence)) return;
      this.#swap(index, parent);
      index = parent;
    }
  }

  #sink(index: number): void {
    const heap = this.#heap;
    for (;;) {
      let least = index;
      for (const child of [2 * index + 1, 2 * index + 2]) {
        if (child < heap.length && before(heap[child] as Sequence, heap[least] as Sequence)) least = child;
      }
      if (least === index) return;
      this.#swap(index, least);
      index = least;
    }
  }

  #swap(a: number, b: number): void {
    const held = this.#heap[a] as Sequence;
    this.#heap[a] = this.#heap[b] as Sequence;
    this.#heap[b] = held;
  }
}

/** A total order that never changes while two sequences wait: ageing moves both alike. */
export function before(a: Sequence, b: Sequence): boolean {
  return a.rank === b.rank ? a.arrival < b.arrival : a.rank < b.rank;
}
