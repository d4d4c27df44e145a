/** How many steps there were, how long they took and how many tokens they had. */

/** Inclusive upper bounds; a last count is of larger steps. The ladder is vLLM's, so that dashboards made for it fit. */
export const STEP_TOKENS_BOUNDS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384] as const;

export interface StepTokensCount {
  /** Steps by bound: each counted once, at the lowest that holds it. */
  counts: number[];
  sum: number;
}

export function addStepTokens(a: StepTokensCount, b: StepTokensCount): StepTokensCount {
  const [long, short] = a.counts.length >= b.counts.length ? [a, b] : [b, a];
  return { counts: long.counts.map((count, at) => count + (short.counts[at] ?? 0)), sum: a.sum + b.sum };
}

export class StepCounts {
  readonly #counts = Array.from({ length: STEP_TOKENS_BOUNDS.length + 1 }, () => 0);
  #sum = 0;
  steps = 0;
  micros = 0;

  add(tokens: number, micros: number): void {
    const at = STEP_TOKENS_BOUNDS.findIndex((bound) => tokens <= bound);
    const index = at === -1 ? STEP_TOKENS_BOUNDS.length : at;
    this.#counts[index] = (this.#counts[index] ?? 0) + 1;
    this.#sum += tokens;
    this.steps++;
    this.micros += micros;
  }

  tokens(): StepTokensCount {
    return { counts: [...this.#counts], sum: this.#sum };
  }
}
