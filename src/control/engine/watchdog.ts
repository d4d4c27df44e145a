const TICKS = 4;

/**
 * Notices an engine that owes something and says nothing. It counts its own ticks rather than the clock, so that time in which
 * the whole machine was suspended does not count.
 */
export class Watchdog {
  readonly #timer: NodeJS.Timeout;
  #quietTicks = 0;

  /** `owes`: something is being waited for; `onSilence` is called after `timeoutMs` to a quarter more without `heard`. */
  constructor(timeoutMs: number, owes: () => boolean, onSilence: () => void) {
    this.#timer = setInterval(() => {
      this.#quietTicks = owes() ? this.#quietTicks + 1 : 0;
      if (this.#quietTicks <= TICKS) return;
      this.#quietTicks = 0;
      onSilence();
    }, timeoutMs / TICKS).unref();
  }

  heard(): void {
    this.#quietTicks = 0;
  }

  stop(): void {
    clearInterval(this.#timer);
  }
}
