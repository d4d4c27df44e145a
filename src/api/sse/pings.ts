/** Something to say where a stream says nothing for long, so that its reader and what lies between know that it lives. */

/** Of silence; the first comes after twice as long at most. */
export const PING_MS = 10_000;

export class Pings {
  readonly #timer: NodeJS.Timeout;
  /** Since the last look. */
  #silent = false;

  /** Until `end` is called. */
  constructor(ping: () => void) {
    this.#timer = setInterval(() => {
      if (this.#silent) ping();
      this.#silent = true;
    }, PING_MS);
  }

  /** Something was said. */
  reset(): void {
    this.#silent = false;
  }

  end(): void {
    clearInterval(this.#timer);
  }
}
