/**
 * What one entity may keep on the disk. Asked before something is taken in, so that a full quota costs nothing, and again with its size
 * before it is kept. Uploads under way at once may together go beyond it by what they are; a job that was accepted always gets room for
 * its checkpoint.
 */
import { MAX_RETRY_SECONDS } from '../engine/ledger.ts';
import { mebibytes } from '../mebibytes.ts';
import { ServiceError } from './service-error.ts';

/** What was deleted and is still on the disk. */
interface Leaving {
  bytes: number;
  /** When it is to be gone, in ms of this process. */
  until: number;
}

export class StorageQuota {
  readonly #usedBytes: (entity: string) => Promise<number>;
  readonly #maxBytes: number;
  /** By entity. */
  readonly #leaving = new Map<string, Set<Leaving>>();

  constructor(usedBytes: (entity: string) => Promise<number>, maxBytes: number) {
    this.#usedBytes = usedBytes;
    this.#maxBytes = maxBytes;
  }

  /**
   * What stays on the disk for a while after it was deleted makes room at once, but may itself take no more than an entity may store: else one
   * that makes and deletes fills the disk. `forMs`: how long it is to stay. `gone`: it is off the disk; called once.
   */
  leave(entity: string, bytes: number, forMs: number): { gone: () => void } {
    const one = { bytes, until: performance.now() + forMs };
    const all = this.#leaving.get(entity) ?? new Set();
    this.#leaving.set(entity, all.add(one));
    const gone = () => {
      all.delete(one);
      if (all.size === 0 && this.#leaving.get(entity) === all) this.#leaving.delete(entity);
    };
    return { gone };
  }

  /** Throws ServiceError where the entity has no room, or none for so many bytes more. */
  async check(entity: string, moreBytes = 0): Promise<void> {
    this.#checkLeaving(entity);
    const used = await this.#usedBytes(entity);
    if (used + Math.max(moreBytes, 1) <= this.#maxBytes) return;
    const asked = moreBytes === 0 ? '' : `, and this takes ${mebibytes(moreBytes)}`;
    throw new ServiceError(
      'quota_exceeded',
      `The entity stores ${mebibytes(used)} of the ${mebibytes(this.#maxBytes)} that it may have${asked}: ` +
        'delete checkpoints, models or artifacts that are no longer needed.',
    );
  }

  #checkLeaving(entity: string): void {
    const all = [...(this.#leaving.get(entity) ?? [])].sort((a, b) => a.until - b.until);
    const leaving = all.reduce((sum, { bytes }) => sum + bytes, 0);
    if (leaving <= this.#maxBytes) return;
    // Those that go first make room first; one that should be gone goes now.
    let left = leaving;
    const last = all.find(({ bytes }) => (left -= bytes) <= this.#maxBytes);
    const seconds = Math.max(1, Math.ceil(((last?.until ?? 0) - performance.now()) / 1000));
    throw new ServiceError(
      'queue_full',
      `${mebibytes(leaving)} of checkpoints that were deleted are still on the disk, more than the ${mebibytes(this.#maxBytes)} ` +
        `that the entity may store: try again in ${seconds} s.`,
      null,
      Math.min(seconds, MAX_RETRY_SECONDS),
    );
  }
}
