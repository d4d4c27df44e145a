/** Work that fills the time which serving leaves, with a share of its own that serving does not get. */

export interface BackgroundWork {
  /** There is something to do. */
  readonly pending: boolean;
  /** Works for about that long, or until there is nothing left, or until it is interrupted. Never rejects. */
  slice(micros: number): Promise<void>;
  /** The running slice ends with the unit of work that it is in; nothing where none runs. */
  interrupt(): void;
  /** Set by the loop: called when there is something to do again. */
  onPending: () => void;
}

/** What was saved up is paid in slices as short as this: sequences wait for them. What a step itself earns is paid whole behind it. */
const SLICE_MICROS = 8000;
/** When no step can run a slice may be long, as the next request interrupts it: going back and forth costs less then. */
const IDLE_SLICE_MICROS = 50_000;
/** A share smaller than this is saved up: a slice has a cost of its own. */
const LEAST_MICROS = 500;
/** Owed at most, after a long step, and hence the longest pause between two steps. */
const MOST_OWED_MICROS = 250_000;

/** Between two signs of life. */
const SIGN_MS = 500;

/** Grants slices: all of the time when no step can run, and a floor of it when steps follow one another. */
export class BackgroundShare {
  readonly #work: BackgroundWork;
  /** Per microsecond of serving. */
  readonly #rate: number;
  readonly #now: () => number;
  #owedMicros = 0;
  /** Of that, what may be paid between these two steps. */
  #dueMicros = 0;
  #idling = false;
  #signed = -Infinity;
  /** Called now and then behind slices that no step follows. */
  onSign: () => void = () => {};

  /** `floor`: the share of time that the work gets however busy serving is; [0, 0.9]. */
  constructor(work: BackgroundWork, floor: number, now: () => number = () => performance.now()) {
    if (!(floor >= 0 && floor <= 0.9)) throw new RangeError('--training-floor must be from 0 to 0.9.');
    this.#work = work;
    this.#rate = floor / (1 - floor);
    this.#now = now;
  }

  get pending(): boolean {
    return this.#work.pending;
  }

  /** A part of the time between steps is its own: they must not follow one another at once. */
  get sharesSteps(): boolean {
    return this.#work.pending && this.#rate > 0;
  }

  /** Calls `wake` when there is something to do again. */
  wakes(wake: () => void): void {
    this.#work.onPending = wake;
  }

  /** No step can run: one slice, after which there may be one. */
  async idle(): Promise<void> {
    this.#owedMicros = 0;
    this.#idling = true;
    await this.#work.slice(IDLE_SLICE_MICROS);
    this.#idling = false;
    if (this.#now() - this.#signed < SIGN_MS) return;
    this.#signed = this.#now();
    this.onSign();
  }

  /** A step may be able to run: a slice that fills idle time ends. What the floor owes is paid all the same. */
  interrupt(): void {
    if (this.#idling) this.#work.interrupt();
  }

  /** A step has taken so long; true when the floor owes enough for a slice. */
  owes(stepMicros: number): boolean {
    if (!this.#work.pending) {
      this.#owedMicros = 0;
      return false;
    }
    const earned = stepMicros * this.#rate;
    this.#owedMicros = Math.min(this.#owedMicros + earned, MOST_OWED_MICROS);
    this.#dueMicros = Math.max(earned, SLICE_MICROS);
    return this.#owedMicros >= LEAST_MICROS;
  }

  /** One slice of what is owed, behind `owes`. */
  async pay(): Promise<void> {
    const began = this.#now();
    await this.#work.slice(Math.floor(Math.min(this.#owedMicros, this.#dueMicros)));
    // What it really took: a unit of work may be longer than what was owed.
    this.#owedMicros -= (this.#now() - began) * 1000;
  }
}
