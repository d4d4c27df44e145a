/** Times one generation for the metrics. All instants are performance.now() in milliseconds. */
import type { ChoiceDelta, Generation } from '../../control/sessions/session.ts';
import type { Metrics } from '../metrics.ts';

export class RunClock {
  readonly #metrics: Metrics;
  readonly #generation: Generation;
  readonly #arrived: number;
  /** Instant of the last output per choice; 0 = none yet. */
  readonly #last: Float64Array;
  #first: number | null = null;
  #tokens = 0;
  #open: number;

  constructor(metrics: Metrics, generation: Generation, arrived: number, n: number) {
    this.#metrics = metrics;
    this.#generation = generation;
    this.#arrived = arrived;
    this.#last = new Float64Array(n);
    this.#open = n;
  }

  delta(delta: ChoiceDelta): void {
    if (delta.tokens > 0) this.#timeTokens(delta.index, delta.tokens);
    if (delta.finish === null) return;
    this.#open--;
    this.#metrics.choiceFinished(delta.finish);
  }

  /** Its deltas have ended: all choices have finished, or it was aborted. */
  finished(): void {
    if (this.#open > 0) return;
    const now = performance.now();
    const started = this.#generation.startedAt() ?? this.#arrived;
    const first = this.#first ?? now;
    this.#metrics.requestFinished({
      generatedTokens: this.#tokens,
      queueSeconds: Math.max(0, started - this.#arrived) / 1000,
      prefillSeconds: Math.max(0, first - started) / 1000,
      decodeSeconds: (now - first) / 1000,
      totalSeconds: (now - this.#arrived) / 1000,
    });
  }

  failed(): void {
    this.#end('error');
  }

  aborted(): void {
    this.#end('abort');
  }

  #end(reason: 'error' | 'abort'): void {
    for (; this.#open > 0; this.#open--) this.#metrics.choiceFinished(reason);
  }

  #timeTokens(index: number, count: number): void {
    const now = performance.now();
    if (this.#first === null) this.#metrics.firstToken((now - this.#arrived) / 1000);
    this.#first ??= now;
    const last = this.#last[index] ?? 0;
    if (last > 0) this.#metrics.nextToken((now - last) / 1000);
    this.#last[index] = now;
    this.#tokens += count;
    this.#metrics.tokens(count);
  }
}
