/** From experimental_config to the values that a job runs with. */
import type { ImportanceSamplingLevel, KlPenaltySource, RlConfigBody } from '../../schemas/rl-config.ts';
import { TrainingInputError } from './errors.ts';

export interface KlPenalty {
  /** > 0 */
  coefficient: number;
  source: KlPenaltySource;
  /** The base model, a step of the model, or so many steps before the model's step. */
  reference: { kind: 'base' } | { kind: 'step'; step: number } | { kind: 'lag'; steps: number };
}

/** The step to compare with, where the model is at `modelStep`; null: the base model. Step 0 is that, whether it is kept or not. */
export function referenceStep(reference: KlPenalty['reference'], modelStep: number): number | null {
  if (reference.kind === 'base') return null;
  const step = reference.kind === 'step' ? reference.step : modelStep - reference.steps;
  return step > 0 ? step : null;
}

/** The field of experimental_config that names it. */
export function referenceField({ kind }: KlPenalty['reference']): string {
  return kind === 'lag' ? 'kl_penalty_step_lag' : 'kl_penalty_reference_step';
}

export interface LossConfig {
  ppo: boolean;
  epsilon: number;
  epsilonHigh: number;
  importanceSamplingLevel: ImportanceSamplingLevel;
  maskProbRatio: boolean;
  /** null: off. */
  maxImportanceWeight: number | null;
  /** 0: off. */
  tau: number;
  /** 0: off. */
  klCoefficient: number;
  klSource: KlPenaltySource;
  /** null: off. */
  truncatedImportanceSampling: number | null;
}

export interface RlConfig {
  loss: LossConfig;
  /** null: off. */
  klPenalty: KlPenalty | null;
  learningRate: number;
  scaleRewards: boolean;
  advantageBalance: number;
  allowTrainingWithoutLogprobs: boolean;
  precalculateLogprobs: boolean;
  /** null: by the longest sequence. */
  packedSequenceLength: number | null;
  rowsPerStep: number;
  learningRateMultiplierPower: number;
}

const DEFAULT_RL_LEARNING_RATE = 5e-6;
const DEFAULT_CHUNK = 1024;

/** `body` has passed rlConfigSchema. Throws TrainingInputError where values contradict each other. */
export function resolveRlConfig(body: RlConfigBody | null): RlConfig {
  const given = body ?? {};
  const klPenalty = resolveKlPenalty(given);
  return {
    loss: resolveLoss(given, klPenalty),
    klPenalty,
    learningRate: given.learning_rate ?? DEFAULT_RL_LEARNING_RATE,
    scaleRewards: (given.scale_rewards ?? true) && (given.normalize_advantages ?? true),
    advantageBalance: given.advantage_balance ?? 0,
    allowTrainingWithoutLogprobs: given.allow_training_without_logprobs ?? false,
    precalculateLogprobs: given.precalculate_logprobs ?? false,
    packedSequenceLength: resolveRowLength(given),
    rowsPerStep: given.grad_accumulation_sequences ?? 1,
    learningRateMultiplierPower: given.num_trajectories_learning_rate_multiplier_power ?? 0,
  };
}

function resolveLoss(given: RlConfigBody, klPenalty: KlPenalty | null): LossConfig {
  const ppo = resolvePpo(given);
  const epsilon = given.epsilon ?? (ppo ? 0.2 : 1);
  return {
    ppo,
    epsilon,
    epsilonHigh: given.epsilon_high ?? (ppo ? epsilon : 4),
    importanceSamplingLevel: given.importance_sampling_level ?? 'token',
    maskProbRatio: given.mask_prob_ratio ?? false,
    maxImportanceWeight: given.max_negative_advantage_importance_sampling_weight || null,
    tau: resolveTau(given),
    klCoefficient: klPenalty?.coefficient ?? 0,
    klSource: klPenalty?.source ?? 'current_learner',
    truncatedImportanceSampling: given.truncated_importance_sampling || null,
  };
}

function resolvePpo(given: RlConfigBody): boolean {
  const { ppo = null, loss_fn: named = null } = given;
  if (ppo !== null && named !== null && ppo !== (named === 'ppo')) {
    throw invalid('loss_fn', `is "${named}" while ppo is ${ppo}.`);
  }
  return ppo ?? named === 'ppo';
}

function resolveTau(given: RlConfigBody): number {
  const { alt_k2_tau: alt = null, kimi_k2_tau: kimi = null } = given;
  if (alt !== null && kimi !== null && alt !== kimi) {
    throw invalid('alt_k2_tau', 'is another name of kimi_k2_tau: give one, or the same value.');
  }
  return alt ?? kimi ?? 0;
}

function resolveKlPenalty(given: RlConfigBody): KlPenalty | null {
  const { kl_penalty_reference_step: step = null, kl_penalty_step_lag: lag = null } = given;
  if (step !== null && lag !== null) {
    throw invalid('kl_penalty_step_lag', 'cannot be given together with kl_penalty_reference_step.');
  }
  const coefficient = given.kl_penalty_coef ?? 0;
  if (coefficient === 0) return null;
  const reference: KlPenalty['reference'] =
    step !== null ? { kind: 'step', step } : lag !== null ? { kind: 'lag', steps: lag } : { kind: 'base' };
  return { coefficient, source: given.kl_penalty_source ?? 'current_learner', reference };
}

function resolveRowLength(given: RlConfigBody): number | null {
  const length = given.packed_sequence_length ?? null;
  const chunk = given.logprob_calculation_chunk_size ?? DEFAULT_CHUNK;
  if (length !== null && length % chunk !== 0) {
    throw invalid('packed_sequence_length', `must be divisible by logprob_calculation_chunk_size (${chunk}).`);
  }
  return length;
}

function invalid(name: string, message: string): TrainingInputError {
  return new TrainingInputError(`experimental_config.${name}`, message);
}
