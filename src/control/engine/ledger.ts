import { CHARS_PER_TOKEN } from '../json-weight.ts';
import { SharedBound } from '../shared-bound.ts';
import { QueueFullError, type PartOf, type Places } from './client.ts';
import { grammarSize } from './native-grammar.ts';
import { errorOutput, forEachOutput } from './outputs.ts';
import type { SequenceOutput, SequenceRequest, StepMessage } from './protocol.ts';

export type SubmitRequest = Omit<SequenceRequest, 'id' | 'resumeIds' | 'promptScored'>;

export interface LedgerLimits {
  /** Sequences that the engine can run at once. */
  maxSequences: number;
  /** Sequences that may wait beyond those that find a free place. */
  maxWaitingRequests: number;
  /** Their prompt tokens, and grammars by their size; the lone waiting request of a tenant may have more. */
  maxWaitingTokens: number;
}

/** A crash may hit a sequence this often before it is held to be the cause. */
const MAX_REPLAYS = 2;
/**
 * The same before it begins to run: its adapter was being loaded, its grammar followed. One more, as what runs is the likelier cause and ends
 * after two: a long queue is not suspected for its sake.
 */
const MAX_CRASHES_BEFORE = 3;
/** The `openai` client before its version 6 does not believe a minute or more, and tries again at once. */
export const MAX_RETRY_SECONDS = 59;
const CRASHED = 'The engine stopped while this request was running.';

/** One sequence that has not finished. */
export interface LedgerEntry {
  readonly id: number;
  readonly request: SubmitRequest;
  /** What it counts as while it waits, in tokens. */
  readonly weight: number;
  readonly deliver: (output: SequenceOutput) => void;
  /** Stands for the client's request, where this is a part of one. */
  readonly of: object | undefined;
  /** It has a place of its own, none that its request keeps. */
  readonly placed: boolean;
  /** Outputs so far: after a crash the engine continues from them. */
  readonly received: number[];
  /** The next prompt position to be scored, where scores were asked for. */
  promptScored: number;
  /** Prompt tokens that the prefix cache had when it first began to run; null before. */
  cachedTokens: number | null;
  /** Bytes of it have reached the client. */
  streamed: boolean;
  /** Handed to the present engine. */
  sent: boolean;
  /** When it began to run, in ms; null while it waits. */
  startedAt: number | null;
  replays: number;
  /** Crashes in a row of an engine that had it and had not begun to run it. */
  crashesBefore: number;
}

/**
 * The client's side of the books: what was asked of the engine and not yet answered. Where the queue is full, a tenant that has less than its
 * equal share of it may still add to that.
 */
export class SequenceLedger {
  readonly #limits: LedgerLimits;
  readonly #entries = new Map<number, LedgerEntry>();
  /** Those with which something has been submitted. */
  readonly #begun = new WeakSet<Places>();
  #nextId = 1;
  readonly #requests: SharedBound;
  readonly #waitingTokens: SharedBound;
  /** The same, by the requests of which these are parts. */
  readonly #waitingOf = new Map<object, number>();
  #waiting = 0;
  #completed = 0;
  /** Moving mean of the milliseconds that a sequence runs. */
  #meanRunMs = 0;

  constructor(limits: LedgerLimits) {
    this.#limits = limits;
    this.#requests = new SharedBound(limits.maxSequences + limits.maxWaitingRequests);
    this.#waitingTokens = new SharedBound(limits.maxWaitingTokens);
  }

  get size(): number {
    return this.#entries.size;
  }

  /** Sequences that have not begun to run. */
  get waiting(): number {
    return this.#waiting;
  }

  /** Sequences that the engine has finished, in all. */
  get completed(): number {
    return this.#completed;
  }

  /** Throws QueueFullError where there are not as many. */
  reserve(tenant: string, count: number): Places {
    this.#checkPlaces(tenant, count);
    this.#requests.add(tenant, count);
    let held = count;
    const release = () => {
      if (held > 0) this.#requests.add(tenant, -held);
      held = 0;
    };
    return { release };
  }

  /** Books all requests or throws QueueFullError. What goes on with the places that it keeps is not a newcomer: there is room for it. */
  add(
    requests: SubmitRequest[],
    sink: (index: number, output: SequenceOutput) => void,
    { places, request: of }: PartOf = {},
  ): LedgerEntry[] {
    const weights = weightsOf(requests);
    const tenant = requests[0]?.tenant ?? '';
    const placed = places === undefined;
    if (placed) this.#checkPlaces(tenant, requests.length);
    if (placed || !this.#begun.has(places)) this.#checkTokens(tenant, weights, of);
    if (!placed) this.#begun.add(places);
    return requests.map((request, index) => {
      const entry: LedgerEntry = {
        id: this.#nextId++,
        request,
        weight: weights[index] ?? 0,
        deliver: (output) => sink(index, output),
        of,
        placed,
        received: [],
        promptScored: 0,
        cachedTokens: null,
        streamed: false,
        sent: false,
        startedAt: null,
        replays: 0,
        crashesBefore: 0,
      };
      this.#entries.set(entry.id, entry);
      if (placed) this.#requests.add(tenant, 1);
      this.#countWaiting(entry, 1);
      return entry;
    });
  }

  has(entry: LedgerEntry): boolean {
    return this.#entries.has(entry.id);
  }

  /** False when it was gone already. */
  remove(entry: LedgerEntry): boolean {
    if (!this.#entries.delete(entry.id)) return false;
    if (entry.startedAt === null) this.#countWaiting(entry, -1);
    if (entry.placed) this.#requests.add(entry.request.tenant, -1);
    return true;
  }

  /** Takes in one message of the engine. A sink that throws ends its own sequence; its id is returned, to be aborted. */
  receive(message: StepMessage): number[] {
    const failed: number[] = [];
    const now = performance.now();
    message.started.forEach((id, index) => this.#start(id, message.cached[index] ?? 0, now));
    forEachOutput(message, (output) => {
      if (!this.#deliver(output, now)) failed.push(output.id);
    });
    return failed;
  }

  /** In order of arrival. */
  entries(): LedgerEntry[] {
    return [...this.#entries.values()];
  }

  /** The engine had it in so many crashes that the next one would be its end. */
  isSuspect(entry: LedgerEntry): boolean {
    return entry.replays >= MAX_REPLAYS || entry.crashesBefore >= MAX_CRASHES_BEFORE;
  }

  /** It has passed the point at which the engine crashed. */
  acquit(entry: LedgerEntry): void {
    entry.replays = MAX_REPLAYS - 1;
  }

  /** The engine is gone: ends what cannot be replayed and sets the rest back to waiting. */
  crashed(): void {
    for (const entry of this.#entries.values()) {
      const tried = entry.startedAt === null ? entry.sent && this.isSuspect(entry) : entry.replays >= MAX_REPLAYS;
      if (tried || (entry.startedAt !== null && entry.streamed)) this.#fail(entry, CRASHED);
      else this.#reset(entry);
    }
  }

  /** No engine comes any more. */
  failAll(error: string): void {
    for (const entry of this.#entries.values()) this.#fail(entry, error, { unavailable: true });
  }

  #checkPlaces(tenant: string, count: number): void {
    if (this.#requests.fits(tenant, count)) return;
    const text = `The queue is full: ${this.#requests.total} requests are running or waiting.`;
    throw new QueueFullError(text, this.#retryAfterSeconds());
  }

  /** What waits alone may be larger than the bound, which no later try would change: the parts of a request are no rivals. */
  #checkTokens(tenant: string, weights: readonly number[], of: object | undefined): void {
    const tokens = weights.reduce((sum, weight) => sum + weight, 0);
    const own = (of && this.#waitingOf.get(of)) ?? 0;
    if (this.#waitingTokens.of(tenant) > own && !this.#waitingTokens.fits(tenant, tokens)) {
      const text = `The queue is full: ${this.#waitingTokens.total} prompt tokens (grammars counted by their size) are waiting.`;
      throw new QueueFullError(text, this.#retryAfterSeconds());
    }
  }

  /** About the time in which the waiting sequences will have begun. */
  #retryAfterSeconds(): number {
    const rounds = Math.ceil((this.#waiting + 1) / this.#limits.maxSequences);
    return Math.min(MAX_RETRY_SECONDS, Math.max(1, Math.ceil((rounds * this.#meanRunMs) / 1000)));
  }

  #countWaiting({ request, weight, of }: LedgerEntry, sign: 1 | -1): void {
    this.#waiting += sign;
    this.#waitingTokens.add(request.tenant, sign * weight);
    if (of === undefined) return;
    const left = (this.#waitingOf.get(of) ?? 0) + sign * weight;
    if (left === 0) this.#waitingOf.delete(of);
    else this.#waitingOf.set(of, left);
  }

  #start(id: number, cachedTokens: number, now: number): void {
    const entry = this.#entries.get(id);
    if (!entry || entry.startedAt !== null) return;
    entry.cachedTokens ??= cachedTokens;
    entry.startedAt = now;
    entry.crashesBefore = 0;
    this.#countWaiting(entry, -1);
  }

  #deliver(output: SequenceOutput, now: number): boolean {
    const entry = this.#entries.get(output.id);
    if (!entry) return true;
    output.cachedTokens = entry.cachedTokens ?? 0;
    for (const token of output.tokens) entry.received.push(token);
    const piece = output.promptLogprobs;
    if (piece) entry.promptScored = piece.start + piece.logprobs.length;
    if (output.finish !== null) this.#complete(entry, now);
    return this.#tell(entry, output);
  }

  #complete(entry: LedgerEntry, now: number): void {
    const runMs = now - (entry.startedAt ?? now);
    this.#meanRunMs = this.#completed === 0 ? runMs : 0.9 * this.#meanRunMs + 0.1 * runMs;
    this.#completed++;
    this.remove(entry);
  }

  #fail(entry: LedgerEntry, error: string, why: Pick<SequenceOutput, 'unavailable'> = {}): void {
    this.remove(entry);
    this.#tell(entry, { ...errorOutput(entry.id, error), ...why, cachedTokens: entry.cachedTokens ?? 0 });
  }

  #reset(entry: LedgerEntry): void {
    if (entry.sent && entry.startedAt === null) entry.crashesBefore++;
    entry.sent = false;
    if (entry.startedAt === null) return;
    entry.startedAt = null;
    entry.replays++;
    this.#countWaiting(entry, 1);
  }

  #tell(entry: LedgerEntry, output: SequenceOutput): boolean {
    try {
      entry.deliver(output);
      return true;
    } catch (error) {
      process.emitWarning(`A receiver of engine outputs threw: ${error instanceof Error ? error.message : 'unknown'}`);
      return !this.remove(entry);
    }
  }
}

/** All choices of a request have one grammar, which the first counts. */
function weightsOf(requests: SubmitRequest[]): number[] {
  return requests.map(({ promptIds, grammar }, index) => {
    const shared = grammar === undefined || (index > 0 && requests[index - 1]?.grammar === grammar);
    return promptIds.length + (shared ? 0 : Math.ceil(grammarSize(grammar) / CHARS_PER_TOKEN));
  });
}
