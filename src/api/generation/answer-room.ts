/** Memory of answers that are not streamed: what one of them may take, and all of them together, until their readers have them. */
import type { ServerResponse } from 'node:http';
import { SharedBound } from '../../control/shared-bound.ts';
import type { ChoiceDelta } from '../../control/sessions/session.ts';
import { ApiError } from '../errors.ts';

/** All answers together, as a multiple of the largest one. */
const ANSWERS_AT_LIMIT = 8;
/** An answer is booked in steps of so much: small ones, the most of them, are not booked at all. */
const STEP_BYTES = 64 * 1024;
/** Rough cost of one entry of a delta. */
const TOKEN_BYTES = 8;
const LOGPROB_BYTES = 160;
const CALL_BYTES = 100;

export class AnswerRoom {
  readonly #perAnswer: number;
  readonly #held: SharedBound;

  /** `heapBytes`: what this process may take for all that it does; answers have half of it at most. */
  constructor(maxAnswerBytes: number, heapBytes: number) {
    this.#perAnswer = maxAnswerBytes;
    this.#held = new SharedBound(Math.min(ANSWERS_AT_LIMIT * maxAnswerBytes, heapBytes / 2));
  }

  /** Bytes that are booked. */
  get held(): number {
    return this.#held.total;
  }

  /** Of one answer; what it takes is given back when its response closes. */
  open(tenant: string, response: ServerResponse): AnswerBytes {
    return new AnswerBytes(this.#held, this.#perAnswer, tenant, response);
  }
}

export class AnswerBytes {
  readonly #held: SharedBound;
  readonly #max: number;
  readonly #tenant: string;
  readonly #response: ServerResponse;
  #bytes = 0;
  #booked = 0;

  constructor(held: SharedBound, max: number, tenant: string, response: ServerResponse) {
    this.#held = held;
    this.#max = max;
    this.#tenant = tenant;
    this.#response = response;
    response.once('close', () => this.#book(-this.#booked));
  }

  /** Before the answer takes so much more; throws ApiError where it must not. */
  grow(bytes: number): void {
    if (this.#bytes + bytes > this.#max) throw tooLarge(this.#max);
    this.#take(bytes, false);
  }

  /** The same of an answer that was kept: it was bounded then, and can be read however large it is. */
  reread(bytes: number): void {
    this.#take(bytes, this.#held.total === 0);
  }

  #take(bytes: number, fits: boolean): void {
    this.#bytes += bytes;
    const step = Math.floor(this.#bytes / STEP_BYTES) * STEP_BYTES - this.#booked;
    if (step === 0 || this.#response.destroyed) return;
    if (!fits && !this.#held.fits(this.#tenant, step)) throw noRoom();
    this.#book(step);
  }

  #book(bytes: number): void {
    this.#booked += bytes;
    this.#held.add(this.#tenant, bytes);
  }
}

/** What a delta takes in memory, roughly. */
export function deltaBytes(
  piece: Pick<ChoiceDelta, 'text' | 'reasoning' | 'toolCalls' | 'tokenIds' | 'logprobs'>,
): number {
  const entries = piece.logprobs.reduce((sum, logprob) => sum + 1 + logprob.top.length, 0);
  const calls = piece.toolCalls.reduce((sum, call) => sum + CALL_BYTES + (call.arguments?.length ?? 0) * 2, 0);
  const text = (piece.text.length + piece.reasoning.length) * 2;
  return text + calls + piece.tokenIds.length * TOKEN_BYTES + scoreBytes(entries);
}

/** Log-probabilities, alternatives included. */
export function scoreBytes(entries: number): number {
  return entries * LOGPROB_BYTES;
}

function tooLarge(maxBytes: number): ApiError {
  const message =
    `The answer has grown beyond ${maxBytes} bytes (--max-answer-size): ask for a stream, ` +
    'or for fewer choices, tokens or log-probabilities.';
  return new ApiError('answer_too_large', message);
}

function noRoom(): ApiError {
  const message =
    'Answers that are not streamed hold all the memory that there is for them: ask for a stream, for fewer log-probabilities, or again later.';
  return new ApiError('unavailable', message, null, 1);
}
