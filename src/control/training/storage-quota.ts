/**
 * What one entity may keep on the disk. Asked before something is taken in, so that a full quota costs nothing, and again with its size
 * before it is kept. Uploads under way at once may together go beyond it by what they are; a job that was accepted always gets room for
 * its checkpoint.
 */
import { ServiceError } from './service-error.ts';

export class StorageQuota {
  readonly #usedBytes: (entity: string) => Promise<number>;
  readonly #maxBytes: number;

  constructor(usedBytes: (entity: string) => Promise<number>, maxBytes: number) {
    this.#usedBytes = usedBytes;
    this.#maxBytes = maxBytes;
  }

  /** Throws ServiceError where the entity has no room, or none for so many bytes more. */
  async check(entity: string, moreBytes = 0): Promise<void> {
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

function mebibytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}
