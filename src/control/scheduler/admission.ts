import type { SamplingSpec } from '../engine/native.ts';
import { PAGE_SIZE } from '../engine/native.ts';
import type { SequenceRequest } from '../engine/protocol.ts';
import { type PagePool, pagesFor } from './pages.ts';
import type { Sequence } from './sequence.ts';

export interface SchedulerOptions {
  /** Most sequences that run at once. */
  maxSequences: number;
  /** Tokens in one step, all sequences together. */
  maxBatchTokens: number;
  maxModelLen: number;
  /** Pages of the KV pool. */
  pages: number;
  /** false: a prompt goes into one step whole or waits. */
  enableChunkedPrefill: boolean;
  vocabSize: number;
  maxLogprobs: number;
}

/** Throws a sentence that names the settings when no schedule could keep to them. */
export function checkOptions(options: SchedulerOptions): void {
  const { maxSequences, maxBatchTokens, maxModelLen, pages, enableChunkedPrefill } = options;
  for (const [name, value] of Object.entries({ maxSequences, maxBatchTokens, maxModelLen, pages })) {
    if (!Number.isSafeInteger(value) || value < 1)
      throw new RangeError(`${name} must be a positive integer, not ${value}.`);
  }
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

/** Why a request can never run, or null. Native code would refuse it too, but with everything else that is in its step. */
export function refusal(request: SequenceRequest, options: SchedulerOptions): string | null {
  const { promptIds, resumeIds, sampling } = request;
  if (!(promptIds instanceof Int32Array) || !(resumeIds instanceof Int32Array))
    return 'Token ids must be an Int32Array.';
  if (promptIds.length < 1) return 'The prompt is empty.';
  if (promptIds.length >= options.maxModelLen) {
    return `The prompt has ${promptIds.length} tokens, which leaves no room for an answer in the context of ${options.maxModelLen}.`;
  }
  const badId = [promptIds, resumeIds].flatMap((ids) => ids.find((id) => id < 0 || id >= options.vocabSize) ?? []);
  if (badId.length > 0) return `Token id ${badId[0]} is outside of the vocabulary of ${options.vocabSize}.`;
  const length = Math.min(promptIds.length + sampling.maxTokens, options.maxModelLen);
  if (pagesFor(length - 1) > options.pages) {
    return `A sequence of ${length} tokens needs ${pagesFor(length - 1)} KV pages, and there are ${options.pages}.`;
  }
  return samplingRefusal(sampling, options);
}

function samplingRefusal(sampling: SamplingSpec, options: SchedulerOptions): string | null {
  const within = (value: number, low: number, high: number) => value >= low && value <= high;
  const whole = (value: number, low: number) => Number.isInteger(value) && within(value, low, 2 ** 31 - 1);
  const checks: [keyof SamplingSpec, boolean][] = [
    ['temperature', within(sampling.temperature, 0, Number.MAX_VALUE)],
    ['topP', within(sampling.topP, 0, 1) && sampling.topP > 0],
    ['topK', whole(sampling.topK, 0)],
    ['minP', within(sampling.minP, 0, 1)],
    ['seed', typeof sampling.seed === 'bigint'],
    ['choice', whole(sampling.choice, 0)],
    ['maxTokens', whole(sampling.maxTokens, 1)],
    ['minTokens', whole(sampling.minTokens, 0)],
    ['stopIds', sampling.stopIds instanceof Int32Array && sampling.stopIds.length <= 1024],
    ['logprobs', whole(sampling.logprobs, -1) && sampling.logprobs <= options.maxLogprobs],
  ];
  const wrong = checks.find(([, fine]) => !fine);
  return wrong ? `The sampling parameter ${wrong[0]} is out of range.` : null;
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

  /** True reserves the sequence's pages within this step's count. */
  admits(sequence: Sequence): boolean {
    const needed = soonNeeded(sequence);
    if (this.#promised + needed > this.#pool.free) return false;
    this.#promised += needed;
    return true;
  }

  /** Pages moved from promised to allocated. */
  allocated(count: number): void {
    this.#promised -= count;
  }
}

function soonNeeded(sequence: Sequence): number {
  const positions = Math.min(sequence.known + PAGE_SIZE, sequence.maxPositions);
  return Math.max(0, pagesFor(positions) - sequence.pages.length);
}
