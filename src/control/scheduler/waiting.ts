import type { Sequence } from './sequence.ts';

/** Sequences that wait for a slot and pages, in the order in which they should run. */
export interface WaitingQueue {
  readonly size: number;
  /** A new arrival. */
  push(sequence: Sequence): void;
  /** A preempted sequence: before those that arrived after it. */
  requeue(sequence: Sequence): void;
  /** The next to run. */
  peek(): Sequence | undefined;
  /** Removes what peek returns. */
  take(): Sequence | undefined;
  /** Removes a sequence that is in the queue. */
  remove(sequence: Sequence): void;
}

/** First come, first served; preempted sequences in front. */
export class FcfsQueue implements WaitingQueue {
  /** Preempted, the next to run last. Victims leave youngest first, so the oldest lies on top. */
  readonly #front: Sequence[] = [];
  #back: (Sequence | undefined)[] = [];
  #head = 0;
  #size = 0;
  /** Removed from the middle: skipped when they come up, so that an abort costs no search. */
  readonly #removed = new Set<Sequence>();

  get size(): number {
    return this.#size;
  }

  push(sequence: Sequence): void {
    this.#back.push(sequence);
    this.#size++;
  }

  requeue(sequence: Sequence): void {
    this.#front.push(sequence);
    this.#size++;
  }

  peek(): Sequence | undefined {
    this.#skipRemoved();
    return this.#front.at(-1) ?? this.#back[this.#head];
  }

  take(): Sequence | undefined {
    const next = this.peek();
    if (next) this.#advance();
    if (next) this.#size--;
    return next;
  }

  remove(sequence: Sequence): void {
    this.#removed.add(sequence);
    this.#size--;
    if (this.#removed.size > 64 && this.#removed.size > this.#size) this.#sweep();
  }

  #skipRemoved(): void {
    for (;;) {
      const next = this.#front.at(-1) ?? this.#back[this.#head];
      if (!next || !this.#removed.delete(next)) return;
      this.#advance();
    }
  }

  #advance(): void {
    if (this.#front.pop()) return;
    this.#back[this.#head++] = undefined;
    if (this.#head < 1024 || this.#head * 2 < this.#back.length) return;
    this.#back = this.#back.slice(this.#head);
    this.#head = 0;
  }

  /** Drops all removed entries, so that aborted sequences hold no memory in a queue that stands still. */
  #sweep(): void {
    const kept = this.#front.filter((sequence) => !this.#removed.has(sequence));
    this.#front.splice(0, this.#front.length, ...kept);
    this.#back = this.#back.slice(this.#head).filter((sequence) => sequence && !this.#removed.has(sequence));
    this.#head = 0;
    this.#removed.clear();
  }
}
