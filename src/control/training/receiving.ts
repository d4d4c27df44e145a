/** Uploads on their way to the disk, of all kinds together: each may take as much of it as one body may have, whatever the quota says at its end. */
import { ServiceError } from './service-error.ts';

const MAX_OF_ENTITY = 32;
const MAX_OF_ALL = 256;

export class Receiving {
  /** By entity: one that sends many slowly must not keep the others out. */
  readonly #underWay = new Map<string, number>();

  /** Throws ServiceError where too many are on their way. */
  async run<Result>(entity: string, work: () => Promise<Result>): Promise<Result> {
    this.#enter(entity);
    try {
      return await work();
    } finally {
      this.#leave(entity);
    }
  }

  #enter(entity: string): void {
    const own = this.#underWay.get(entity) ?? 0;
    let all = 0;
    for (const count of this.#underWay.values()) all += count;
    if (own >= MAX_OF_ENTITY || all >= MAX_OF_ALL) {
      throw new ServiceError('unavailable', 'Too many uploads at once; try again.');
    }
    this.#underWay.set(entity, own + 1);
  }

  #leave(entity: string): void {
    const left = (this.#underWay.get(entity) ?? 1) - 1;
    if (left === 0) this.#underWay.delete(entity);
    else this.#underWay.set(entity, left);
  }
}
