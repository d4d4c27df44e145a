/** A job as a row of optimizer steps: what the runner drives. */
import type { TrainerSession } from '../engine/training.ts';
import type { TrainingKind } from './checkpoint-files.ts';

export interface StepContext {
  session: TrainerSession;
  /** What `prepare` gave. */
  logprobs: Float32Array | null;
  /** Throws where the job is to stop; called between calls of the session. */
  check(): void;
}

/** Names as clients read them; values that are not finite are left out of events. */
export type StepMetrics = Record<string, number>;

export interface JobPlan {
  readonly kind: TrainingKind;
  /** Optimizer steps. */
  readonly steps: number;
  /** Told when training starts, beside the number of steps. */
  readonly summary: StepMetrics;
  /** Computed once, with the weights that the job starts from. */
  prepare(context: Omit<StepContext, 'logprobs'>): Promise<Float32Array | null>;
  /** Step `index` from 0. The same index with the same weights gives the same result. */
  step(index: number, context: StepContext): Promise<StepMetrics>;
  /** Closes what it holds open; a step opens it again. */
  close(): Promise<void>;
}
