import { PAGE_SIZE } from '../engine/native.ts';
import type { Adviser } from './advice.ts';
import type { SchedulingPolicy } from './fair-queue.ts';
import { type PagePool, pagesFor } from './pages.ts';
import type { Speller } from './jumps.ts';
import type { Sequence } from './sequence.ts';
import type { SpeculationOptions } from './speculation.ts';

export interface SchedulerOptions {
  /** Most sequences that run at once. */
  maxSequences: number;
  /** Tokens in one step, all sequences together. */
  maxBatchTokens: number;
  /** What a step that reads prompts should take at most while sequences generate; 0, the default: tokens alone bound it. */
  stepTargetMs?: number;
  maxModelLen: number;
  /** Pages of the KV pool. */
  pages: number;
  /** false: a prompt goes into one step whole or waits. */
  enableChunkedPrefill: boolean;
  vocabSize: number;
  maxLogprobs: number;
  /** Pages of earlier sequences are found again by those that begin with the same tokens. Default true. */
  enablePrefixCaching?: boolean;
  /** Default 'fcfs'; priorities count under 'priority' only. */
  schedulingPolicy?: SchedulingPolicy;
  /** Under 'priority' a sequence that waits gains one unit of priority in so many seconds. Default 10; another one only in tests. */
  priorityAgeingSeconds?: number;
  /** Steers sequences that ask for it. Absent: none can. */
  adviser?: Adviser;
  /** Spells what grammars force. Absent: it is sampled like all else. */
  speller?: Speller | null;
  /** Part of the pages that may be held for peers, and for how long; default none. */
  holdShare?: number;
  holdMs?: number;
  /** Proposes tokens from what a sequence said before. Absent: never. */
  speculation?: SpeculationOptions;
  /** A clock in ms; another one only in tests. */
  now?: () => number;
}

/** Throws a sentence that names the settings when no schedule could keep to them. */
export function checkOptions(options: SchedulerOptions): void {
  const { maxSequences, maxBatchTokens, maxModelLen, pages, enableChunkedPrefill } = options;
  const { schedulingPolicy = 'fcfs', priorityAgeingSeconds } = options;
  for (const [name, value] of Object.entries({ maxSequences, maxBatchTokens, maxModelLen, pages })) {
    if (!Number.isSafeInteger(value) || value < 1)
      throw new RangeError(`${name} must be a positive integer, not ${value}.`);
  }
  if (schedulingPolicy !== 'fcfs' && schedulingPolicy !== 'priority')
    throw new RangeError(`--scheduling-policy must be fcfs or priority, not ${String(schedulingPolicy)}.`);
  if (priorityAgeingSeconds !== undefined && !(priorityAgeingSeconds > 0))
    throw new RangeError('priorityAgeingSeconds must be positive.');
  if (maxBatchTokens < maxSequences) {
    throw new RangeError(
      `--max-num-batched-tokens (${maxBatchTokens}) must be at least --max-num-seqs (${maxSequences}): every running sequence needs a token per step.`,
    );
  }
  if (!enableChunkedPrefill && maxBatchTokens < maxModelLen) {
    throw new RangeError(
      `Without chunked prefill --max-num-batched-tokens (${maxBatchTokens}) must be at least --max-model-len (${maxModelLen}).`,
    );
  }
}

/**
 * Decides whether the head of the queue may run. It must find pages for all tokens it knows and for one page of growth,
 * beside the same for every running sequence: otherwise it would soon be preempted again and its prefill wasted.
 * Alone it always fits, because a request that never could was refused.
 */
export class PageBudget {
  readonly #pool: PagePool;
  #promised = 0;

  constructor(pool: PagePool) {
    this.#pool = pool;
  }

  /** Counts what running sequences will soon take. Call once per step, before the first `admits`. */
  begin(running: readonly Sequence[]): void {
    this.#promised = 0;
    for (const sequence of running) this.#promised += soonNeeded(sequence);
  }

  /** Pages that are missing for the sequence, which would begin with the pages `found`; 0 or less = it may run. */
  shortage(sequence: Sequence, found: readonly number[]): number {
    return this.#promised + this.#cost(sequence, found) - this.#pool.availableTo(sequence.tenant);
  }

  /** True reserves the sequence's pages within this step's count. One that would run `alone` may also take others' floors. */
  admits(sequence: Sequence, found: readonly number[], alone: boolean): boolean {
    const cost = this.#cost(sequence, found);
    if (this.#promised + cost > (alone ? this.#pool.free : this.#pool.availableTo(sequence.tenant))) return false;
    this.#promised += cost;
    return true;
  }

  /** Pages moved from promised to allocated. */
  allocated(count: number): void {
    this.#promised -= count;
  }

  /** Found pages that somebody reads cost nothing; those that are only kept count as available until then. */
  #cost(sequence: Sequence, found: readonly number[]): number {
    let shared = 0;
    for (const page of found) if (this.#pool.readers(page) > 0) shared++;
    return soonNeeded(sequence) - shared;
  }
}

/** Pages for all that the sequence knows and for one page of growth. */
export function soonNeeded(sequence: Sequence): number {
  const positions = Math.min(sequence.known + PAGE_SIZE, sequence.maxPositions);
  return Math.max(0, pagesFor(positions) - sequence.pages.length);
}
