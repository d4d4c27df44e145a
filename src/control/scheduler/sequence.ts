import type { NativeConstraint, NativeProgram } from '../engine/native-grammar.ts';
import type { PinnedAdapter } from '../engine/adapter-store.ts';
import { PAGE_SIZE, type SamplingSpec, type StepControl } from '../engine/native.ts';
import type { SequenceRequest } from '../engine/protocol.ts';
import type { SequenceAdviser } from './advice.ts';
import type { BlockHasher, CacheScope } from './block-hash.ts';
import { IntBuffer } from './int-buffer.ts';
import { type ForcedOutput, ForcedTokens } from './jumps.ts';

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
  readonly scope: CacheScope;
  /** -1: the prompt is not scored. */
  readonly promptLogprobs: number;
  readonly promptLength: number;
  /** Most tokens of prompt and output together. */
  readonly maxLength: number;
  /** What its outputs must be, and how far they are; null = anything. */
  readonly constraint: NativeConstraint | null;
  /** Forced text may be appended (see jumps.ts). */
  readonly jumps: boolean;
  /** What was appended and is not delivered yet; null = nothing. */
  forced: ForcedTokens | null = null;
  /** With maxTokens held to the context. */
  readonly sampling: SamplingSpec;
  /** Order of arrival, and its time in ms. */
  arrival = 0;
  arrivedAt = 0;
  /** Priority with the time of arrival in it: the less, the earlier (see before()). */
  rank = 0;
  /** How urgent it was when it was admitted last (see FairQueue). */
  level = 0;
  /** The id of the one that last took its place; -1 = none. */
  displacedBy = -1;
  /** What it pinned of its adapter; null = the base model. */
  adapter: PinnedAdapter | null = null;
  state: SequenceState = 'waiting';
  /** Ended by its client; leaves at the next step boundary. */
  aborted = false;
  /** It has run at some time: it is no longer the queue's to count. */
  started = false;
  /** -1 while it does not run. */
  slot = -1;
  planned = 0;
  /** Rows that sample its next token in steps whose results have not come: two at most, the second planned ahead of the first's. */
  awaited = 0;
  /** The slot holds the last token itself: it has sampled since it was opened. */
  sampledInSlot = false;
  /** Page ids in order of position. */
  readonly pages = new IntBuffer(8);
  /** How many of `pages` native code has been told. */
  pagesTold = 0;
  /** Leading pages that were found in the prefix cache or stored there. */
  stored = 0;
  /** Of the prefix cache, when it was admitted last. */
  epoch = 0;
  /** Prompt tokens found in the cache when it first began to run. */
  cachedTokens = 0;
  /** The next prompt position whose score is to be delivered. */
  nextScore: number;
  /** Its prompt's blocks are held for a peer when it ends. */
  readonly holdsBlocks: boolean;
  /** Asked before each token; null: nobody steers it. */
  adviser: SequenceAdviser | null = null;
  /** What it said about the next token, and how many tokens there were then. */
  control: Omit<StepControl, 'slot'> | null = null;
  advisedAt = -1;
  /** How often what was proposed for it came true (see speculation.ts). */
  acceptance = 0.5;
  /** The keys of its full blocks, as far as they have been asked for. */
  readonly #keys: string[] = [];
  #root: string | null = null;
  readonly #tokens: IntBuffer;

  constructor(request: SequenceRequest, maxModelLen: number, grammar: NativeProgram | null = null, mayJump = false) {
    const { promptIds, resumeIds, sampling } = request;
    this.id = request.id;
    this.priority = request.priority;
    this.tenant = request.tenant;
    const { tenant, adapter, cacheSalt = null } = request;
    this.scope = { tenant, adapterVersion: adapter?.version ?? '', cacheSalt };
    this.promptLogprobs = request.promptLogprobs ?? -1;
    this.holdsBlocks = request.kvTransfer !== undefined && 'hold' in request.kvTransfer;
    this.nextScore = Math.max(1, request.promptScored ?? 0);
    this.promptLength = promptIds.length;
    this.maxLength = Math.min(promptIds.length + sampling.maxTokens, maxModelLen);
    const maxTokens = this.maxLength - promptIds.length;
    this.sampling = { ...sampling, maxTokens, minTokens: Math.min(sampling.minTokens, maxTokens) };
    // A forced token is drawn from nothing that its processed log-probability could be of.
    this.jumps = mayJump && request.jumpForward === true && sampling.logprobsMode !== 'processed';
    const { stopIds } = sampling;
    this.constraint = grammar?.constrain({ stopIds, maxTokens: Math.max(1, maxTokens), jumps: this.jumps }) ?? null;
    this.constraint?.take(resumeIds);
    this.#tokens = new IntBuffer(promptIds.length + resumeIds.length + Math.min(64, this.sampling.maxTokens));
    this.#tokens.append(promptIds);
    this.#tokens.append(resumeIds);
  }

  /** Tokens known: the prompt's and the outputs'. */
  get known(): number {
    return this.#tokens.length;
  }

  /** Tokens that the engine has not been given: known ones and the one that it is about to sample, unless that must be the last. */
  get missing(): number {
    return Math.min(this.#tokens.length + this.awaited, this.maxPositions) - this.planned;
  }

  /** What it is fed next may depend on its last token: an extension is asked, or a grammar forces text. */
  get needsItsTokens(): boolean {
    return this.adviser !== null || (this.jumps && this.constraint !== null);
  }

  /** The last output is never fed, so its position needs no page. */
  get maxPositions(): number {
    return this.maxLength - 1;
  }

  /** Some of the prompt's scores are yet to be computed. */
  get scoresPrompt(): boolean {
    return this.promptLogprobs >= 0 && this.nextScore < this.promptLength;
  }

  /** Position of the first token whose score is to be computed while it is fed; Infinity = none. */
  get scoreFrom(): number {
    return this.forced && this.sampling.logprobs >= 0 ? this.forced.scoreFrom : Infinity;
  }

  /** How many leading tokens may be taken as computed: what gives the first wanted scores or logits is not among them. */
  get reusable(): number {
    return Math.min(this.known, this.scoreFrom) - 1;
  }

  /** Full blocks of the known tokens. */
  get fullBlocks(): number {
    return Math.floor(this.known / PAGE_SIZE);
  }

  /** The cache keys of its full blocks, in order. */
  blockKeys(hasher: BlockHasher): readonly string[] {
    let parent = this.#keys.at(-1) ?? (this.#root ??= hasher.root(this.scope));
    for (let block = this.#keys.length; block < this.fullBlocks; block++) {
      parent = hasher.next(parent, this.tokens(block * PAGE_SIZE, (block + 1) * PAGE_SIZE));
      this.#keys.push(parent);
    }
    return this.#keys;
  }

  tokens(start: number, end: number): Int32Array {
    return this.#tokens.view(start, end);
  }

  append(token: number): void {
    this.#tokens.push(token);
    this.sampledInSlot = true;
  }

  appendForced(tokens: Int32Array): void {
    this.forced ??= new ForcedTokens(this.known);
    this.#tokens.append(tokens);
    this.sampledInSlot = false;
  }

  /** All that was appended since the last sampled token. It has been fed, and scored where that was asked for. */
  takeForced(): ForcedOutput {
    const { from = this.known, logprobs = [], ranks = [], top = [] } = this.forced ?? {};
    this.forced = null;
    const tokens = this.tokens(from, this.known).slice();
    return { id: this.id, tokens, logprobs: Float32Array.from(logprobs), ranks: Int32Array.from(ranks), top };
  }

  /** Forgets what the engine knew; the pages must have been released and the slot given back. */
  resetToWaiting(): void {
    this.state = 'waiting';
    this.slot = -1;
    this.planned = 0;
    this.sampledInSlot = false;
    this.pages.clear();
    this.pagesTold = 0;
    this.stored = 0;
  }
}
