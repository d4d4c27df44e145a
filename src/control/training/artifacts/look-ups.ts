/**
 * Look-ups of host names, one of an entity at a time: Node runs two at once and the others in the order in which they came, and one whose name
 * server does not answer takes tens of seconds.
 */
import type { FetchNetwork } from './guarded-fetch.ts';

type LookUp = FetchNetwork['resolve'];

export class LookUps {
  readonly #resolve: LookUp;
  /** By entity: when its last one will have ended. */
  readonly #ends = new Map<string, Promise<void>>();

  constructor(resolve: LookUp) {
    this.#resolve = resolve;
  }

  of(entity: string): LookUp {
    return (host, signal) => {
      const before = this.#ends.get(entity) ?? Promise.resolve();
      const found = before.then(() => {
        // Nobody waits for it any more.
        signal.throwIfAborted();
        return this.#resolve(host, signal);
      });
      const forget = (): void => {
        if (this.#ends.get(entity) === end) this.#ends.delete(entity);
      };
      const end = found.then(forget, forget);
      this.#ends.set(entity, end);
      return found;
    };
  }
}
