import { Turns } from '../../control/turns.ts';

/**
 * Work of this thread that may take long, such as the parsing of a large body: one piece at a time, entities in turn, and for half of the time
 * at most. So whoever sends many of them at once does not stop everything else.
 */
export class ParseTurns {
  readonly #waiting = new Turns<() => void>(Infinity);
  #resting = false;

  /** Resolves or rejects as the work does. */
  run<Result>(entity: string, work: () => Result): Promise<Result> {
    return new Promise((resolve, reject) => {
      this.#waiting.push(entity, () => {
        try {
          resolve(work());
        } catch (error) {
          reject(error as Error);
        }
      });
      this.#next();
    });
  }

  #next(): void {
    if (this.#resting) return;
    const work = this.#waiting.take();
    if (!work) return;
    this.#resting = true;
    const started = performance.now();
    work();
    // After what follows from it at once: what was parsed is checked.
    setImmediate(() => {
      setTimeout(() => {
        this.#resting = false;
        this.#next();
      }, performance.now() - started);
    });
  }
}
