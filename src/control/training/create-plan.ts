/** From a stored job to the steps that it takes. */
import type { AdapterWeights } from '../engine/training.ts';
import type { ChatEncoder } from '../sessions/open-chat.ts';
import { readAdapter } from './checkpoint-files.ts';
import { TrainingInputError } from './errors.ts';
import type { JobPlan } from './plan.ts';
import type { Checkpoints, JobInputs, TrainingJob } from './ports.ts';
import { rlBatch } from './rl-batch.ts';
import { resolveRlConfig, type KlPenalty } from './rl-config.ts';
import { RlPlan } from './rl-plan.ts';
import { resolveSftConfig } from './sft-config.ts';
import { createSftPlan } from './sft-plan.ts';
import { SftTokenizer } from './sft-tokens.ts';

export interface PlanSources {
  inputs: JobInputs;
  checkpoints: Checkpoints;
  chat: ChatEncoder;
}

/** `modelStep`: the model's step when the job started. */
export async function createPlan(job: TrainingJob, modelStep: number, sources: PlanSources): Promise<JobPlan> {
  const { inputs, checkpoints, chat } = sources;
  if (job.kind === 'sft') {
    const config = resolveSftConfig(job.config);
    return createSftPlan(() => inputs.trainingData(job.id), config, new SftTokenizer(chat, config));
  }
  const config = resolveRlConfig(job.config);
  const reference = config.klPenalty
    ? await readReference(config.klPenalty.reference, job.modelId, modelStep, checkpoints)
    : null;
  const batch = await rlBatch(inputs.trajectoryGroups(job.id), config, chat, job.id);
  return new RlPlan({ batch, config, reference, modelStep });
}

async function readReference(
  reference: KlPenalty['reference'],
  modelId: string,
  modelStep: number,
  checkpoints: Checkpoints,
): Promise<'base' | AdapterWeights> {
  if (reference.kind === 'base') return 'base';
  const step = reference.kind === 'step' ? reference.step : Math.max(0, modelStep - reference.steps);
  const checkpoint = await checkpoints.at(modelId, step);
  if (checkpoint) return readAdapter(checkpoint.adapter.directory);
  // Step 0 is the base model, whether it is kept or not.
  if (step === 0) return 'base';
  const field = reference.kind === 'step' ? 'kl_penalty_reference_step' : 'kl_penalty_step_lag';
  throw new TrainingInputError(`experimental_config.${field}`, `the model has no checkpoint of step ${step}.`);
}
