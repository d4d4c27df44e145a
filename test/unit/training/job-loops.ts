/** Jobs of several steps, and loops over a plane's store that run them as a test says. */
import { join } from 'node:path';
import { pino } from 'pino';
import { FolderBlobStore } from '../../../src/control/store/blob-store.ts';
import { JobRepository } from '../../../src/control/store/job-repository.ts';
import { JobLoop, type RunJob } from '../../../src/control/training/jobs/job-loop.ts';
import { group, type Plane } from './plane.ts';

export const rl = (modelId: string, groups = 2) => ({
  model_id: modelId,
  trajectory_groups: Array.from({ length: groups }, (_, i) => group([i + 1, 0, 0.5])),
  // Rows of 32 tokens: several steps.
  experimental_config: { packed_sequence_length: 32, logprob_calculation_chunk_size: 32, learning_rate: 0.01 },
});

/** A loop of its own, whose jobs run as `run` says. */
export function loopOf(
  plane: Plane,
  run: RunJob,
  log = pino({ level: 'silent' }),
  turnMs = 0,
): { loop: JobLoop; repository: JobRepository } {
  const repository = new JobRepository(plane.database.db);
  const blobs = new FolderBlobStore(join(plane.dataDir, 'blobs'));
  return { loop: new JobLoop({ repository, blobs, run, maxAttempts: 3, retryDelayMs: 1, turnMs, log }), repository };
}
