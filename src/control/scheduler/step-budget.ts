/**
 * How many tokens a step may have. While sequences generate, each waits for its next token as long as a step takes: prompts are then read
 * in pieces that keep steps near a time, by what a token took in steps before. What is computed does not depend on the pieces.
 */
import { PAGE_SIZE } from '../engine/native.ts';
import type { SchedulerOptions } from './admission.ts';
import type { Sequence } from './sequence.ts';

/** Prompts get as many tokens of a step as sequences generate, and at least so many: on slow machines too they come forward. */
const LEAST_PROMPT_TOKENS = 4 * PAGE_SIZE;
/** Share that the newest step has in the mean. */
const NEWEST = 0.25;

type StepBudgetOptions = Pick<SchedulerOptions, 'maxBatchTokens' | 'stepTargetMs' | 'enableChunkedPrefill'>;

export class StepBudget {
  readonly #maxTokens: number;
  /** 0: every step may have so many tokens. */
  readonly #targetMicros: number;
  /** A running mean over steps that read prompts; 0 = none yet. */
  #microsPerToken = 0;

  constructor({ maxBatchTokens, stepTargetMs = 0, enableChunkedPrefill }: StepBudgetOptions) {
    this.#maxTokens = maxBatchTokens;
    this.#targetMicros = enableChunkedPrefill ? 1000 * stepTargetMs : 0;
  }

  /** A step that read prompts has run. */
  note(tokens: number, micros: number): void {
    const perToken = micros / tokens;
    this.#microsPerToken += (this.#microsPerToken === 0 ? 1 : NEWEST) * (perToken - this.#microsPerToken);
  }

  /** Tokens of the next step. */
  tokens(running: readonly Sequence[]): number {
    const generating = running.reduce((sum, { missing }) => sum + (missing === 1 ? 1 : 0), 0);
    if (generating === 0 || this.#microsPerToken === 0 || this.#targetMicros === 0) return this.#maxTokens;
    const inTime = this.#targetMicros / this.#microsPerToken - generating;
    const ofPrompts = Math.max(inTime - (inTime % PAGE_SIZE), generating, LEAST_PROMPT_TOKENS);
    return Math.min(generating + ofPrompts, this.#maxTokens);
  }
}
