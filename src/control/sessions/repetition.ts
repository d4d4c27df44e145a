/**
 * repetition_detection: does the output end in copies of one pattern? For every pattern length L a counter says how many
 * tokens in a row equalled the one L places before, so a token costs one comparison per length, however many copies count.
 */
import { SessionError } from './session.ts';

export interface RepetitionRule {
  /** 1 <= minSize <= maxSize. */
  minSize: number;
  maxSize: number;
  /** Consecutive copies that end the output, >= 2. */
  minCount: number;
}

/** Longest pattern: each length is one comparison per token. */
export const MAX_PATTERN_SIZE = 1024;

/** As asked for; absent sizes are 0. null = off. Throws SessionError. */
export function repetitionRule(maxSize: number, minSize: number, minCount: number): RepetitionRule | null {
  if (maxSize < 0) refuse(`max_pattern_size must be >= 0, got ${maxSize}.`);
  if (minSize < 0) refuse(`min_pattern_size must be >= 0, got ${minSize}.`);
  if (minSize > maxSize) refuse(`min_pattern_size must be <= max_pattern_size, got ${minSize} > ${maxSize}.`);
  if (maxSize > MAX_PATTERN_SIZE) refuse(`max_pattern_size must be at most ${MAX_PATTERN_SIZE}, got ${maxSize}.`);
  if (maxSize === 0) return null;
  if (minCount < 2) refuse(`min_count must be >= 2 where max_pattern_size is set, got ${minCount}.`);
  return { maxSize, minSize: Math.max(minSize, 1), minCount };
}

function refuse(message: string): never {
  throw new SessionError('bad_request', `repetition_detection: ${message}`, 'repetition_detection');
}

/** The output of one choice. */
export class RepetitionScan {
  readonly #rule: RepetitionRule;
  /** The last maxSize tokens, a ring. */
  readonly #last: Int32Array;
  /** Per length from minSize on: tokens in a row that equalled the one so many places before. */
  readonly #matches: Uint32Array;
  #seen = 0;

  constructor(rule: RepetitionRule) {
    this.#rule = rule;
    this.#last = new Int32Array(rule.maxSize);
    this.#matches = new Uint32Array(rule.maxSize - rule.minSize + 1);
  }

  /** Takes the next token of the output. True when it completes the copies of a pattern. */
  push(token: number): boolean {
    const { minSize, maxSize, minCount } = this.#rule;
    const last = this.#last;
    const matches = this.#matches;
    const longest = Math.min(maxSize, this.#seen);
    let found = false;
    let at = (this.#seen - minSize) % maxSize;
    for (let size = minSize; size <= longest; size++) {
      const count = last[at] === token ? (matches[size - minSize] ?? 0) + 1 : 0;
      matches[size - minSize] = count;
      if (count >= size * (minCount - 1)) found = true;
      at = at === 0 ? maxSize - 1 : at - 1;
    }
    last[this.#seen % maxSize] = token;
    this.#seen++;
    return found;
  }
}
