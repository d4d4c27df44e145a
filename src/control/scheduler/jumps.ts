/**
 * Jumping forward: where a grammar forces text, its tokens are appended to the sequence at once and fed like a piece of prompt, without a
 * forward pass for each. They reach the client with the token that is sampled after them.
 *
 * What is appended follows from the tokens before it alone: a sequence that is fed again after a crash jumps the same way.
 */
import type { StepResult } from '../engine/native.ts';
import { topOf } from '../engine/outputs.ts';
import type { TopLogprobs } from '../engine/protocol.ts';
import type { Sequence } from './sequence.ts';

/** Text to tokens, as the model's tokenizer would. */
export interface Speller {
  /**
   * The tokens of `text` where it goes on after the tokens `before`. Of a character that is cut at its end the tokens may be missing;
   * empty where the tokenizer has no token boundary at its beginning, or changes it.
   */
  spell(before: Int32Array, text: Uint8Array): Int32Array;
}

/** Forced tokens of one sequence, with their scores where these were asked for. */
export interface ForcedOutput {
  id: number;
  tokens: Int32Array;
  /** Parallel to `tokens`, or empty. */
  logprobs: Float32Array;
  ranks: Int32Array;
  top: TopLogprobs[];
}

/** Tokens before the forced text that its spelling may depend on. */
const CONTEXT_TOKENS = 8;

/** Forced tokens that have not been delivered. */
export class ForcedTokens {
  /** Position of the first. */
  readonly from: number;
  readonly logprobs: number[] = [];
  readonly ranks: number[] = [];
  readonly top: TopLogprobs[] = [];

  constructor(from: number) {
    this.from = from;
  }

  /** Position of the first that has no score. */
  get scoreFrom(): number {
    return this.from + this.logprobs.length;
  }

  /** Those that come again after a preemption are dropped. */
  score(position: number, logprob: number, rank: number, top: TopLogprobs): void {
    if (position !== this.scoreFrom) return;
    this.logprobs.push(logprob);
    this.ranks.push(rank);
    this.top.push(top);
  }
}

/** Keeps a score that the step's result `index` gives of a forced token. */
export function scoreForced(sequence: Sequence, position: number, index: number, result: StepResult): void {
  const [logprob, rank] = [result.promptLogprobs[index] as number, result.promptRanks[index] as number];
  sequence.forced?.score(position, logprob, rank, topOf(index, result.promptTopRanges, result));
}

/** Appends all that is forced after the sequence's last token, but for the last token that it may have: that one the model chooses. */
export function jumpForward(sequence: Sequence, speller: Speller): void {
  const { constraint } = sequence;
  // Whoever advises on every token must be asked about every token.
  if (!constraint || !sequence.jumps || sequence.adviser) return;
  for (;;) {
    const room = sequence.maxLength - 1 - sequence.known;
    if (room <= 0) return;
    const text = constraint.forced();
    if (text.length === 0) return;
    const before = sequence.tokens(Math.max(sequence.promptLength, sequence.known - CONTEXT_TOKENS), sequence.known);
    const tokens = allowed(sequence, speller.spell(before, text)).subarray(0, room);
    const count = tokens.length === 0 ? 0 : constraint.jump(tokens);
    if (count === 0) return;
    sequence.appendForced(tokens.subarray(0, count));
  }
}

/** Those before the first that the sequence's controls forbid, or that would end it: there the model chooses. */
function allowed(sequence: Sequence, tokens: Int32Array): Int32Array {
  const { stopIds, allowedIds, badWords = [] } = sequence.sampling;
  const permitted = allowedIds && allowedIds.length > 0 ? new Set(allowedIds) : null;
  const output = [...tokens];
  const stop = output.findIndex((token, index) => {
    if (stopIds.includes(token) || permitted?.has(token) === false) return true;
    return badWords.some((word) => word.at(-1) === token && endsWith(sequence, output.slice(0, index), word));
  });
  return stop === -1 ? tokens : tokens.subarray(0, stop);
}

/** Whether the sequence and what is appended to it end in the word without its last token. */
function endsWith(sequence: Sequence, appended: number[], word: Int32Array): boolean {
  const length = word.length - 1;
  const known = sequence.tokens(Math.max(0, sequence.known - length), sequence.known);
  const last = [...known, ...appended].slice(-length);
  return length === 0 || (last.length === length && last.every((token, index) => token === word[index]));
}
