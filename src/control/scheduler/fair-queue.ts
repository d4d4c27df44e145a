import { HeapQueue } from './heap-queue.ts';
import type { Sequence } from './sequence.ts';
import { FcfsQueue, type WaitingQueue } from './waiting.ts';

export type SchedulingPolicy = 'fcfs' | 'priority';

/** Tenants without work whose account is remembered, so that a pause does not clear it. */
const MAX_IDLE_TENANTS = 1024;

/** One tenant's place in the queue. */
interface Share {
  readonly tenant: string;
  readonly queue: WaitingQueue;
  /** Tokens computed for it, since the start; one that returns begins at no less than the least served of the others. */
  served: number;
  running: number;
  /** When its last running sequence ended, in ms. */
  ranUntil: number;
}

/**
 * The waiting sequences of all tenants. Within a tenant they are in the order of the policy; between tenants the one whose
 * next sequence has the better level comes first, and among equals the one that was served the fewest tokens. With a single
 * tenant the order is the policy's exactly.
 *
 * The level is the sequence's priority (always equal under FCFS), improved by one for each `ageingMs` that it has waited while
 * nothing of its tenant ran: so whatever others send, everybody's turn comes.
 */
export class FairQueue implements WaitingQueue {
  readonly #policy: SchedulingPolicy;
  readonly #ageingMs: number;
  readonly #now: () => number;
  /** Tenants that wait or run. */
  readonly #active = new Map<string, Share>();
  readonly #idle = new Map<string, number>();
  #size = 0;

  constructor(policy: SchedulingPolicy, ageingMs: number, now: () => number) {
    this.#policy = policy;
    this.#ageingMs = ageingMs;
    this.#now = now;
  }

  get size(): number {
    return this.#size;
  }

  push(sequence: Sequence): void {
    this.#share(sequence.tenant).queue.push(sequence);
    this.#size++;
  }

  requeue(sequence: Sequence): void {
    this.#share(sequence.tenant).queue.requeue(sequence);
    this.#size++;
  }

  peek(): Sequence | undefined {
    return this.#next()?.queue.peek();
  }

  take(): Sequence | undefined {
    const sequence = this.peek();
    if (sequence) this.takeHead(sequence);
    return sequence;
  }

  /** Removes what `peek` has returned: another `peek` could choose another tenant, because time goes on. */
  takeHead(sequence: Sequence): void {
    if (this.#share(sequence.tenant).queue.take() !== sequence)
      throw new Error(`Sequence ${sequence.id} is not the next of its tenant.`);
    this.#size--;
  }

  remove(sequence: Sequence): void {
    const share = this.#share(sequence.tenant);
    share.queue.remove(sequence);
    this.#size--;
    this.#retire(share);
  }

  /** The sequence, taken before, runs now. */
  began(sequence: Sequence): void {
    const share = this.#share(sequence.tenant);
    sequence.level = this.#level(sequence, share, this.#now());
    share.running++;
  }

  /** It runs no longer; one that was preempted must have been requeued before. */
  ended(sequence: Sequence): void {
    const share = this.#share(sequence.tenant);
    share.running--;
    share.ranUntil = this.#now();
    this.#retire(share);
  }

  /** The less, the earlier. */
  levelOf(waiting: Sequence): number {
    return this.#level(waiting, this.#share(waiting.tenant), this.#now());
  }

  charge(sequence: Sequence, tokens: number): void {
    this.#share(sequence.tenant).served += tokens;
  }

  runningOf(tenant: string): number {
    return this.#active.get(tenant)?.running ?? 0;
  }

  #next(): Share | undefined {
    if (this.#active.size === 1) return this.#active.values().next().value;
    const now = this.#now();
    let best: Share | undefined;
    let bestHead: Sequence | undefined;
    let bestLevel = Infinity;
    for (const share of this.#active.values()) {
      const head = share.queue.peek();
      if (!head) continue;
      const level = this.#level(head, share, now);
      const fairer = share.served - (best?.served ?? Infinity) || head.arrival - (bestHead?.arrival ?? Infinity);
      if (level > bestLevel || (level === bestLevel && fairer >= 0)) continue;
      [best, bestHead, bestLevel] = [share, head, level];
    }
    return best;
  }

  #level(head: Sequence, share: Share, now: number): number {
    const priority = this.#policy === 'fcfs' ? 0 : compressed(head.priority);
    const waitedMs = share.running > 0 ? 0 : now - Math.max(head.arrivedAt, share.ranUntil);
    return priority - Math.floor(waitedMs / this.#ageingMs);
  }

  #share(tenant: string): Share {
    const found = this.#active.get(tenant);
    if (found) return found;
    let least = this.#active.size > 0 ? Infinity : 0;
    for (const { served } of this.#active.values()) least = Math.min(least, served);
    const served = Math.max(least, this.#idle.get(tenant) ?? 0);
    this.#idle.delete(tenant);
    const queue = this.#policy === 'fcfs' ? new FcfsQueue() : new HeapQueue();
    const share = { tenant, queue, served, running: 0, ranUntil: -Infinity };
    this.#active.set(tenant, share);
    return share;
  }

  #retire(share: Share): void {
    if (share.running > 0 || share.queue.size > 0) return;
    this.#active.delete(share.tenant);
    // A pause of all forgives what was before.
    if (this.#active.size === 0) this.#idle.clear();
    else this.#idle.set(share.tenant, share.served);
    if (this.#idle.size <= MAX_IDLE_TENANTS) return;
    const [oldest] = this.#idle.keys();
    this.#idle.delete(oldest as string);
  }
}

/**
 * Keeps the order of priorities and bounds their distance: 1 is one unit from 0 and 2^63 sixty-three, so that ageing catches up
 * with any priority a client may send.
 */
export function compressed(priority: number): number {
  return Math.sign(priority) * Math.log2(1 + Math.abs(priority));
}
