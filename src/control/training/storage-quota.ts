/**
 * What one entity may keep on the disk. Asked before something is taken in, so that a full quota costs nothing, and again with its size
 * before it is kept. Uploads under way at once may together go beyond it by what they are; a job that was accepted always gets room for
 * its checkpoint.
 */
import { mebibytes } from '../mebibytes.ts';
import { ServiceError } from './service-error.ts';

export class StorageQuota {
  readonly #usedBytes: (entity: string) => Promise<number>;
  readonly #maxBytes: number;
  /** Bytes that are deleted and still on the disk, by entity. */
  readonly #leaving = new Map<string, number>();

  constructor(usedBytes: (entity: string) => Promise<number>, maxBytes: number) {
    this.#usedBytes = usedBytes;
    this.#maxBytes = maxBytes;
  }

  /**
   * What stays on the disk for a while after it was deleted makes room at once, but may itself take no more than an entity may store: else one
   * that makes and deletes fills the disk. `gone`: it is off the disk; called once.
   */
  leave(entity: string, bytes: number): { gone: () => void } {
    const add = (more: number) => {
      const sum = (this.#leaving.get(entity) ?? 0) + more;
      if (sum === 0) this.#leaving.delete(entity);
      else this.#leaving.set(entity, sum);
    };
    add(bytes);
    return { gone: () => add(-bytes) };
  }

  /** Throws ServiceError where the entity has no room, or none for so many bytes more. */
  async check(entity: string, moreBytes = 0): Promise<void> {
    const leaving = this.#leaving.get(entity) ?? 0;
    if (leaving > this.#maxBytes) {
      throw new ServiceError(
        'queue_full',
        `${mebibytes(leaving)} of checkpoints that were deleted are still on the disk, more than the ${mebibytes(this.#maxBytes)} ` +
          'that the entity may store: try again in two minutes.',
      );
    }
    const used = await this.#usedBytes(entity);
    if (used + Math.max(moreBytes, 1) <= this.#maxBytes) return;
    const asked = moreBytes === 0 ? '' : `, and this takes ${mebibytes(moreBytes)}`;
    throw new ServiceError(
      'quota_exceeded',
      `The entity stores ${mebibytes(used)} of the ${mebibytes(this.#maxBytes)} that it may have${asked}: ` +
        'delete checkpoints, models or artifacts that are no longer needed.',
    );
  }
}
