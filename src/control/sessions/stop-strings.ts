/**
 * Stop strings in a text that comes in pieces. Each is looked for by Knuth, Morris and Pratt, so that what is kept for a request, which may wait
 * for long beside a thousand others, is a number per character. The match that ends first wins (of those, the longest), so the result does not
 * depend on how the text is cut.
 */
export class StopStrings {
  readonly stops: readonly string[];
  /** Parallel to `stops`: for each beginning of one the length of the longest shorter beginning that it ends in. */
  readonly borders: readonly Uint16Array[];

  /** Of 65,535 characters each at most. */
  constructor(stops: readonly string[]) {
    this.stops = stops;
    this.borders = stops.map(bordersOf);
  }

  get isEmpty(): boolean {
    return this.stops.length === 0;
  }
}

function bordersOf(stop: string): Uint16Array {
  const borders = new Uint16Array(stop.length + 1);
  for (let at = 1; at < stop.length; at++)
    borders[at + 1] = advance(stop, borders, borders[at] ?? 0, stop.charCodeAt(at));
  return borders;
}

/** How much of the stop string the text ends in, once the character has come; it ended in `length` of it before. */
function advance(stop: string, borders: Uint16Array, length: number, unit: number): number {
  // Behind a whole one there is no character that could be equal.
  while (length > 0 && stop.charCodeAt(length) !== unit) length = borders[length] ?? 0;
  return stop.charCodeAt(length) === unit ? length + 1 : 0;
}

export interface StopScan {
  /** Text that may go out now. */
  text: string;
  /** The stop string that was completed; nothing may follow. */
  stop: string | null;
}

/** How far one choice's text is into each stop string, and the text that is held back because one may have begun. */
export class StopScanner {
  readonly #stops: StopStrings;
  readonly #includeStop: boolean;
  readonly #lengths: Uint16Array;
  #held = '';

  constructor(stops: StopStrings, includeStop: boolean) {
    this.#stops = stops;
    this.#includeStop = includeStop;
    this.#lengths = new Uint16Array(stops.stops.length);
  }

  /** Whether text may be held back at all. */
  get holdsBack(): boolean {
    return !this.#stops.isEmpty && !this.#includeStop;
  }

  /** `inert`: a match that ends in this piece does not count (min_tokens), one that only begins here does. */
  feed(piece: string, inert: boolean): StopScan {
    if (this.#stops.isEmpty) return { text: piece, stop: null };
    const text = this.#held + piece;
    for (let i = this.#held.length; i < text.length; i++) {
      const stop = this.#step(text.charCodeAt(i));
      if (stop === null || inert) continue;
      this.#held = '';
      return { text: text.slice(0, this.#includeStop ? i + 1 : i + 1 - stop.length), stop };
    }
    const keep = this.#includeStop ? 0 : this.#open();
    this.#held = text.slice(text.length - keep);
    return { text: text.slice(0, text.length - keep), stop: null };
  }

  /** The text ends: what was held back was no stop string. */
  flush(): string {
    const text = this.#held;
    this.#held = '';
    return text;
  }

  /** The longest stop string that ends with this character. */
  #step(unit: number): string | null {
    const { stops, borders } = this.#stops;
    let found: string | null = null;
    for (let at = 0; at < stops.length; at++) {
      const stop = stops[at] as string;
      const length = advance(stop, borders[at] as Uint16Array, this.#lengths[at] as number, unit);
      this.#lengths[at] = length;
      if (length === stop.length && length > (found?.length ?? 0)) found = stop;
    }
    return found;
  }

  /** Characters that a match still to come may begin with. */
  #open(): number {
    const { stops, borders } = this.#stops;
    return stops.reduce((most, stop, at) => {
      const length = this.#lengths[at] as number;
      return Math.max(most, length === stop.length ? (borders[at]?.[length] ?? 0) : length);
    }, 0);
  }
}
