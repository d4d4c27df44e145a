/** What the HTTP layer sees of training. */
import type { ArtifactService } from './artifacts/artifact-service.ts';
import type { JobService } from './jobs/job-service.ts';
import type { TrainingStats } from './jobs/training-stats.ts';
import type { LogService } from './logs/log-service.ts';
import type { ModelService } from './models/model-service.ts';

export interface TrainingServices {
  models: ModelService;
  jobs: JobService;
  logs: LogService;
  artifacts: ArtifactService;
  stats: TrainingStats;
  /** Jobs by state. */
  jobCounts(): Promise<ReadonlyMap<string, number>>;
  /** Tries what jobs need: the database and the folder of the blobs. */
  check(): Promise<{ name: string; ok: boolean; message: string }[]>;
}
