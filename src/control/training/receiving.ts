/** Uploads on their way to the disk, of all kinds together: each may take as much of it as one body may have, whatever the quota says at its end. */
import { SharedBound } from '../shared-bound.ts';
import { ServiceError } from './service-error.ts';

/** One that sends many slowly must not keep the others out. */
const MAX_OF_ENTITY = 32;
const MAX_OF_ALL = 256;

export class Receiving {
  readonly #underWay = new SharedBound(MAX_OF_ALL);

  /** Throws ServiceError where too many are on their way. */
  async run<Result>(entity: string, work: () => Promise<Result>): Promise<Result> {
    if (this.#underWay.of(entity) >= MAX_OF_ENTITY || !this.#underWay.fits(entity, 1)) {
      throw new ServiceError('unavailable', 'Too many uploads at once; try again.');
    }
    this.#underWay.add(entity, 1);
    try {
      return await work();
    } finally {
      this.#underWay.add(entity, -1);
    }
  }
}
