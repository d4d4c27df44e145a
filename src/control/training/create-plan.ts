/** From a stored job to the steps that it takes. */
import type { AdapterWeights, RowRoom } from '../engine/training.ts';
import type { ChatEncoder } from '../sessions/open-chat.ts';
import { DamagedFilesError, damagedStep, readAdapter } from './checkpoint-files.ts';
import { TrainingInputError } from './errors.ts';
import type { JobPlan } from './plan.ts';
import type { Checkpoints, JobInputs, TrainingJob } from './ports.ts';
import { referenceField, referenceStep, resolveRlConfig, type KlPenalty } from './rl-config.ts';
import { RlPlan } from './rl-plan.ts';
import { resolveSftConfig } from './sft-config.ts';
import { createSftPlan } from './sft-plan.ts';
import { SftTokenizer } from './sft-tokens.ts';

export interface PlanSources {
  inputs: JobInputs;
  checkpoints: Checkpoints;
  chat: ChatEncoder;
  /** Of each row. */
  room: RowRoom;
  /** Aborted where the job stops. */
  signal: AbortSignal;
}

/** `modelStep`: the model's step when the job started. */
export async function createPlan(job: TrainingJob, modelStep: number, sources: PlanSources): Promise<JobPlan> {
  const { inputs, chat, room, signal } = sources;
  if (job.kind === 'sft') {
    const config = resolveSftConfig(job.config);
    return createSftPlan(() => inputs.trainingData(job.id), config, new SftTokenizer(chat, config));
  }
  const config = resolveRlConfig(job.config);
  const reference = config.klPenalty ? await readReference(config.klPenalty.reference, job, modelStep, sources) : null;
  const batch = await inputs.rlBatch({ jobId: job.id, config, room }, chat, signal);
  return new RlPlan({ batch, config, reference, modelStep });
}

async function readReference(
  reference: KlPenalty['reference'],
  { id, modelId }: TrainingJob,
  modelStep: number,
  { inputs, checkpoints }: PlanSources,
): Promise<'base' | AdapterWeights> {
  const step = referenceStep(reference, modelStep);
  if (step === null) return 'base';
  const kept = (await inputs.reference(id, step)) ?? (await checkpoints.at(modelId, step))?.adapter;
  const field = `experimental_config.${referenceField(reference)}`;
  if (kept !== undefined) {
    return readAdapter(kept.directory, kept.version).catch((error: unknown) => {
      throw error instanceof DamagedFilesError ? damagedStep(step, error, `${field} needs another one.`) : error;
    });
  }
  throw new TrainingInputError(field, `the model has no checkpoint of step ${step}.`);
}
