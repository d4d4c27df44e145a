/** Saves snapshots as often as they are cheap, and at least every half minute. */
import { performance } from 'node:perf_hooks';
import type { JobSnapshots } from './ports.ts';
import { encodeSnapshot, type JobSnapshot } from './snapshot.ts';

const SMALL_BYTES = 32 * 1024 * 1024;
const MAX_AGE_MS = 30_000;
/** Large ones take at most a tenth of the time. */
const SHARE = 10;

export class SnapshotWriter {
  readonly #snapshots: JobSnapshots;
  readonly #jobId: string;
  #bytes = 0;
  #savedAt = performance.now();
  #costMs = 0;

  constructor(snapshots: JobSnapshots, jobId: string) {
    this.#snapshots = snapshots;
    this.#jobId = jobId;
  }

  isDue(): boolean {
    if (this.#bytes <= SMALL_BYTES) return true;
    const age = performance.now() - this.#savedAt;
    return age >= Math.min(SHARE * this.#costMs, MAX_AGE_MS);
  }

  async save(snapshot: JobSnapshot): Promise<void> {
    const started = performance.now();
    this.#bytes = await this.#snapshots.save(this.#jobId, encodeSnapshot(snapshot));
    this.#savedAt = performance.now();
    this.#costMs = this.#savedAt - started;
  }
}
