/** Share that the newest step has in the mean. */
const NEWEST = 0.1;

/** How long steps of so many tokens take: a running mean for each number of tokens. */
export class StepTimes {
  /** 0 = none yet. */
  readonly #micros: Float64Array;

  constructor(maxTokens: number) {
    this.#micros = new Float64Array(maxTokens + 1);
  }

  add(tokens: number, micros: number): void {
    const before = this.#micros[tokens] as number;
    this.#micros[tokens] = before === 0 ? micros : before + NEWEST * (micros - before);
  }

  /** null: no step of that size has been seen. */
  of(tokens: number): number | null {
    return this.#micros[tokens] || null;
  }
}
