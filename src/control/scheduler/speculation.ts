/** Speculation without a draft model: what a sequence said before, after the same tokens as now, is proposed to the engine. */
import type { Sequence } from './sequence.ts';
import { StepTimes } from './step-times.ts';

export interface SpeculationOptions {
  /** Most tokens that are proposed for a sequence in one step, 1..MOST_PROPOSED. */
  numSpeculativeTokens: number;
  /** Longest and shortest run of last tokens that is looked up. */
  promptLookupMax: number;
  promptLookupMin: number;
  /** With so many running sequences nothing is proposed. */
  disableByBatchSize: number;
  /** false: proposes whether it pays or not; only for tests. */
  measured?: boolean;
}

export interface SpeculationStats {
  /** Sequences times steps for which there was a proposal. */
  drafts: number;
  draftTokens: number;
  acceptedTokens: number;
  /** By position in the proposal. */
  acceptedPerPosition: number[];
}

/** More than any engine runs at once: `disableByBatchSize` where the number of sequences disables nothing. */
export const NEVER_DISABLED = 4097;
/** A page's growth is promised to every running sequence (see PageBudget): proposals stay within it. */
const MOST_PROPOSED = 15;

const NOTHING = new Int32Array(0);
const NO_DRAFTS: ReadonlyMap<Sequence, Int32Array> = new Map();
/** Share that one more proposal has in a sequence's rate of acceptance. */
const NEWEST = 0.15;
/** After so many steps of one kind there is one of the other: the times and rates that decide must not grow old. */
const PROBE_EVERY = 64;

/**
 * The tokens that followed the latest of the longest earlier runs equal to the last tokens, `most` of them; where the two runs
 * overlap the text goes round in a circle, and so does the proposal.
 */
export function lookUp(tokens: Int32Array, min: number, max: number, most: number): Int32Array {
  const last = tokens.length - 1;
  let found = -1;
  let longest = min - 1;
  for (let end = last - 1; end >= 0 && longest < max; end--) {
    if (tokens[end] !== tokens[last]) continue;
    let length = 1;
    while (length < max && length <= end && tokens[end - length] === tokens[last - length]) length++;
    if (length <= longest) continue;
    found = end;
    longest = length;
  }
  if (found < 0 || most < 1) return NOTHING;
  const period = last - found;
  return Int32Array.from({ length: most }, (_, index) => tokens[found + 1 + (index % period)] as number);
}

/** Expected tokens of `length` proposed ones when each is right with that chance and the first wrong one ends it. */
function expected(rate: number, length: number): number {
  let [sum, chance] = [0, 1];
  for (let index = 0; index < length; index++) sum += chance *= rate;
  return sum;
}

/**
 * Proposes only in steps in which every sequence misses one token, and only while that is faster: tokens per microsecond of such
 * steps against those without, both as measured. What is proposed never changes what is sampled, so neither does the clock.
 */
export class Speculation {
  readonly #options: SpeculationOptions;
  readonly #times: StepTimes;
  #stepsWith = 0;
  #stepsWithout = 0;
  readonly stats: SpeculationStats;

  constructor(options: SpeculationOptions, maxBatchTokens: number) {
    checkSpeculation(options);
    this.#options = options;
    this.#times = new StepTimes(maxBatchTokens);
    const acceptedPerPosition = Array.from({ length: options.numSpeculativeTokens }, () => 0);
    this.stats = { drafts: 0, draftTokens: 0, acceptedTokens: 0, acceptedPerPosition };
  }

  /** Proposals for a step of these sequences within so many tokens. Call once per plan. */
  draftsFor(running: readonly Sequence[], maxTokens: number): ReadonlyMap<Sequence, Int32Array> {
    if (!this.mayPropose(running.length)) return NO_DRAFTS;
    if (running.some(({ missing }) => missing !== 1)) return NO_DRAFTS;
    const drafts = new Map<Sequence, Int32Array>();
    let proposed = 0;
    let gained = 0;
    for (const sequence of running) {
      const draft = this.#draftOf(sequence, maxTokens - running.length - proposed);
      if (draft.length === 0) continue;
      drafts.set(sequence, draft);
      proposed += draft.length;
      gained += expected(sequence.acceptance, draft.length);
    }
    if (proposed === 0) return NO_DRAFTS;
    return this.#options.measured === false || this.#pays(running.length, proposed, gained) ? drafts : NO_DRAFTS;
  }

  /** With so many running sequences there may be proposals. */
  mayPropose(running: number): boolean {
    return running > 0 && running < this.#options.disableByBatchSize;
  }

  /** A step in which every sequence missed one token has run. */
  noteStep(tokens: number, micros: number): void {
    this.#times.add(tokens, micros);
  }

  noteDraft(sequence: Sequence, proposed: number, accepted: number): void {
    const { stats } = this;
    stats.drafts++;
    stats.draftTokens += proposed;
    stats.acceptedTokens += accepted;
    for (let position = 0; position < accepted; position++) stats.acceptedPerPosition[position]!++;
    const tried = Math.min(accepted + 1, proposed);
    sequence.acceptance += NEWEST * (accepted / tried - sequence.acceptance);
  }

  #draftOf(sequence: Sequence, room: number): Int32Array {
    // Advice is asked for before every token; forced text is scored as it is fed.
    if (sequence.adviser || sequence.aborted || sequence.forced) return NOTHING;
    const { numSpeculativeTokens, promptLookupMin, promptLookupMax } = this.#options;
    const most = Math.min(numSpeculativeTokens, room, sequence.maxLength - sequence.known - 1);
    return lookUp(sequence.tokens(0, sequence.known), promptLookupMin, promptLookupMax, most);
  }

  #pays(sequences: number, proposed: number, gained: number): boolean {
    const without = this.#times.of(sequences);
    const withThem = this.#times.of(sequences + proposed);
    let pays = without !== null && (withThem === null || sequences + gained > (sequences * withThem) / without);
    if (pays && this.#stepsWith >= PROBE_EVERY) pays = false;
    else if (!pays && without !== null && this.#stepsWithout >= PROBE_EVERY) pays = true;
    this.#stepsWith = pays ? this.#stepsWith + 1 : 0;
    this.#stepsWithout = pays ? 0 : this.#stepsWithout + 1;
    return pays;
  }
}

/** Throws a sentence that names the field. */
export function checkSpeculation(options: SpeculationOptions): void {
  const whole = (name: string, value: number, least: number, most: number) => {
    if (Number.isSafeInteger(value) && value >= least && value <= most) return;
    throw new RangeError(`${name} must be a whole number from ${least} to ${most}.`);
  };
  whole('num_speculative_tokens', options.numSpeculativeTokens, 1, MOST_PROPOSED);
  whole('prompt_lookup_max', options.promptLookupMax, 1, 64);
  whole('prompt_lookup_min', options.promptLookupMin, 1, options.promptLookupMax);
  whole('disable_by_batch_size', options.disableByBatchSize, 1, NEVER_DISABLED);
}
