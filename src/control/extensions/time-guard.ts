import { createContext, Script } from 'node:vm';
import { refusingExits } from './exit-guard.ts';

/** Thrown by TimeGuard.run. */
class TimeLimitError extends Error {
  constructor(limitMs: number) {
    super(`It ran longer than ${limitMs} ms.`);
    this.name = 'TimeLimitError';
  }
}

/**
 * Runs synchronous work that may never end. V8 stops whatever runs below the call once the time is over: loops, regular
 * expressions and waits alike; neither `catch` nor `finally` of the work sees it. A call costs a thread's start, a fraction
 * of a millisecond. The work cannot end the process either.
 */
export class TimeGuard {
  readonly #scope: { work: () => void } = createContext({ work: () => {} }) as { work: () => void };
  readonly #script = new Script('work()');

  run(work: () => void, limitMs: number): void {
    this.#scope.work = work;
    try {
      refusingExits(() => this.#script.runInContext(this.#scope, { timeout: limitMs }));
    } catch (error) {
      const stopped = (error as { code?: unknown }).code === 'ERR_SCRIPT_EXECUTION_TIMEOUT';
      throw stopped ? new TimeLimitError(limitMs) : error;
    } finally {
      this.#scope.work = () => {};
    }
  }
}
