import type { SequenceOpen, StepControl, StepPlan } from '../engine/native.ts';
import { IntBuffer } from './int-buffer.ts';
import type { Sequence } from './sequence.ts';

/** One planned step: what native code runs, and whose token each of its results is. */
export interface PlannedStep {
  plan: StepPlan;
  /** The sequences of the sampling rows, in row order. */
  sampled: Sequence[];
  /** Parallel to `sampled`: the row's index in `fed`, and how many results it can have: one, and one per proposed token. */
  sampledRows: Int32Array;
  samples: Int32Array;
  /** The sequences of all rows, and the position after the last one that each row feeds; what is proposed is not counted. */
  fed: Sequence[];
  fedTo: Int32Array;
  /** Tokens fed, all rows together, proposed ones counted. */
  tokens: number;
  /** Made before the results of the step before it were known. */
  ahead: boolean;
}

/** Stands for the token that the slot sampled last, which the host need not know yet. */
const SAMPLED_LAST = -1;
const NOTHING = new Int32Array(0);

/** Builds a StepPlan into buffers that it uses again; a plan is valid until the next `begin`. */
export class PlanBuilder {
  readonly #rows: IntBuffer;
  readonly #tokens: IntBuffer;
  readonly #pages = new IntBuffer(256);
  readonly #closes: IntBuffer;
  readonly #fedTo: IntBuffer;
  readonly #scored: IntBuffer;
  readonly #sampledRows: IntBuffer;
  readonly #samples: IntBuffer;
  readonly #sampled: Sequence[] = [];
  readonly #fed: Sequence[] = [];
  #opens: SequenceOpen[] = [];
  #controls: StepControl[] = [];
  #ahead = false;

  constructor({ maxSequences, maxBatchTokens }: { maxSequences: number; maxBatchTokens: number }) {
    this.#rows = new IntBuffer(4 * maxSequences);
    this.#tokens = new IntBuffer(maxBatchTokens);
    this.#closes = new IntBuffer(maxSequences);
    this.#fedTo = new IntBuffer(maxSequences);
    this.#scored = new IntBuffer(maxSequences);
    this.#sampledRows = new IntBuffer(maxSequences);
    this.#samples = new IntBuffer(maxSequences);
  }

  /** `ahead`: before the results of the step before are known. */
  begin(ahead: boolean): void {
    this.#ahead = ahead;
    this.#rows.clear();
    this.#tokens.clear();
    this.#pages.clear();
    this.#closes.clear();
    this.#fedTo.clear();
    this.#scored.clear();
    this.#sampledRows.clear();
    this.#samples.clear();
    this.#sampled.length = 0;
    this.#fed.length = 0;
    this.#opens = [];
    this.#controls = [];
  }

  /** Opens its slot. What it has `planned` at this time lies in its pages already. */
  open(sequence: Sequence): void {
    const { slot, promptLength, sampling, planned, promptLogprobs, constraint } = sequence;
    const open: SequenceOpen = { slot, promptLength, sampling };
    if (planned > 0) open.cached = sequence.tokens(0, planned);
    if (constraint) open.constraint = constraint;
    if (sequence.scoresPrompt) open.promptLogprobs = promptLogprobs;
    if (sequence.adapter) open.adapter = sequence.adapter.native;
    this.#opens.push(open);
  }

  /**
   * Feeds the sequence's next `count` tokens; its pages must cover them. The row samples when it feeds the last known one. `proposed`:
   * what may come after that; pages must cover it too.
   */
  row(sequence: Sequence, count: number, proposed: Int32Array = NOTHING): void {
    this.#tellPages(sequence);
    const start = sequence.planned;
    const unknown = start === sequence.known;
    const samples = unknown || start + count === sequence.known;
    this.#rows.push(sequence.slot);
    this.#rows.push(start);
    this.#rows.push(count + proposed.length);
    this.#rows.push(samples ? 1 + proposed.length : 0);
    if (unknown || (count === 1 && samples && sequence.sampledInSlot)) this.#tokens.push(SAMPLED_LAST);
    else this.#tokens.append(sequence.tokens(start, start + count));
    this.#scored.push(unknown ? 0 : Math.max(0, start + count - Math.max(start, sequence.scoreFrom)));
    this.#tokens.append(proposed);
    if (samples) this.#noteSampled(sequence, 1 + proposed.length);
    if (samples && sequence.control) this.#controls.push({ slot: sequence.slot, ...sequence.control });
    this.#fed.push(sequence);
    this.#fedTo.push(start + count);
    sequence.planned = start + count;
  }

  /** null when no row was added: native code has nothing to do, and closes wait for the next plan. More rows may be added afterwards. */
  finish(takeCloses: () => number[]): PlannedStep | null {
    if (this.#rows.length === 0) return null;
    for (const slot of takeCloses()) this.#closes.push(slot);
    return {
      plan: {
        opens: this.#opens,
        closes: this.#closes.view(),
        pages: this.#pages.view(),
        rows: this.#rows.view(),
        tokens: this.#tokens.view(),
        ...(this.#ahead && { ahead: true }),
        ...(this.#controls.length > 0 && { controls: this.#controls }),
        ...(this.#scored.view().some((count) => count > 0) && { scored: this.#scored.view() }),
      },
      sampled: this.#sampled,
      sampledRows: this.#sampledRows.view(),
      samples: this.#samples.view(),
      fed: this.#fed,
      fedTo: this.#fedTo.view(),
      tokens: this.#tokens.length,
      ahead: this.#ahead,
    };
  }

  #noteSampled(sequence: Sequence, most: number): void {
    sequence.awaited++;
    this.#sampledRows.push(this.#fed.length);
    this.#samples.push(most);
    this.#sampled.push(sequence);
  }

  #tellPages(sequence: Sequence): void {
    for (let index = sequence.pagesTold; index < sequence.pages.length; index++) {
      this.#pages.push(sequence.slot);
      this.#pages.push(index);
      this.#pages.push(sequence.pages.at(index));
    }
    sequence.pagesTold = sequence.pages.length;
  }
}
