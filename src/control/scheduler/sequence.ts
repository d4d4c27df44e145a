import type { SamplingSpec } from '../engine/native.ts';
import type { SequenceRequest } from '../engine/protocol.ts';
import { IntBuffer } from './int-buffer.ts';

export type SequenceState = 'waiting' | 'running' | 'done';

/**
 * One sequence's state. Of its `known` tokens (prompt, then outputs) the first `planned` have been handed to the engine;
 * the difference is what the next steps must feed. A preemption sets `planned` back to 0 and keeps the tokens, so the
 * outputs keep their indices, and with them their random draws.
 */
export class Sequence {
  readonly id: number;
  readonly priority: number;
  readonly tenant: string;
  readonly promptLength: number;
  /** Most tokens of prompt and output together. */
  readonly maxLength: number;
  /** With maxTokens held to the context. */
  readonly sampling: SamplingSpec;
  state: SequenceState = 'waiting';
  /** Ended by its client; leaves at the next step boundary. */
  aborted = false;
  /** It has run at some time: it is no longer the queue's to count. */
  started = false;
  /** -1 while it does not run. */
  slot = -1;
  planned = 0;
  /** The slot holds the last token itself: it has sampled since it was opened. */
  sampledInSlot = false;
  /** Page ids in order of position. */
  readonly pages = new IntBuffer(8);
  /** How many of `pages` native code has been told. */
  pagesTold = 0;
  readonly #tokens: IntBuffer;

  constructor(request: SequenceRequest, maxModelLen: number) {
    const { promptIds, resumeIds, sampling } = request;
    this.id = request.id;
    this.priority = request.priority;
    this.tenant = request.tenant;
    this.promptLength = promptIds.length;
    this.maxLength = Math.min(promptIds.length + sampling.maxTokens, maxModelLen);
    this.sampling = { ...sampling, maxTokens: this.maxLength - promptIds.length };
    this.#tokens = new IntBuffer(promptIds.length + resumeIds.length + Math.min(64, this.sampling.maxTokens));
    this.#tokens.append(promptIds);
    this.#tokens.append(resumeIds);
  }

  /** Tokens known: the prompt's and the outputs'. */
  get known(): number {
    return this.#tokens.length;
  }

  /** Known tokens that the engine has not been given. */
  get missing(): number {
    return this.#tokens.length - this.planned;
  }

  /** The last output is never fed, so its position needs no page. */
  get maxPositions(): number {
    return this.maxLength - 1;
  }

  tokens(start: number, end: number): Int32Array {
    return this.#tokens.view(start, end);
  }

  append(token: number): void {
    this.#tokens.push(token);
    this.sampledInSlot = true;
  }

  /** Forgets what the engine knew; the pages must have been released and the slot given back. */
  resetToWaiting(): void {
    this.state = 'waiting';
    this.slot = -1;
    this.planned = 0;
    this.sampledInSlot = false;
    this.pages.clear();
    this.pagesTold = 0;
  }
}
