/** experimental_config of an RL training job: every key that the clients send. null, like an absent key, means the default. */
import { ONLY_UNSET, boolean, integer, nullable, number, string, type JsonSchema } from './json-schema.ts';

const IMPORTANCE_SAMPLING_LEVELS = ['token', 'sequence', 'average', 'geometric_average'] as const;
export type ImportanceSamplingLevel = (typeof IMPORTANCE_SAMPLING_LEVELS)[number];

const KL_PENALTY_SOURCES = ['current_learner', 'sample'] as const;
export type KlPenaltySource = (typeof KL_PENALTY_SOURCES)[number];

/** Longest packed row: bounds the memory of a step. */
const MAX_PACKED_SEQUENCE_LENGTH = 32_768;

export const MAX_LEARNING_RATE = 1;

export interface RlConfigBody {
  advantage_balance?: number | null;
  allow_training_without_logprobs?: boolean | null;
  alt_k2_tau?: number | null;
  /** An older client's KL term: only 0 is taken. */
  beta?: number | null;
  epsilon?: number | null;
  epsilon_high?: number | null;
  grad_accumulation_sequences?: number | null;
  importance_sampling_level?: ImportanceSamplingLevel | null;
  kimi_k2_tau?: number | null;
  kl_penalty_coef?: number | null;
  kl_penalty_reference_step?: number | null;
  kl_penalty_source?: KlPenaltySource | null;
  kl_penalty_step_lag?: number | null;
  /** A path on the client's machine: only null is taken. */
  kl_ref_adapter_path?: null;
  learning_rate?: number | null;
  logprob_calculation_chunk_size?: number | null;
  loss_fn?: 'cispo' | 'ppo' | null;
  mask_prob_ratio?: boolean | null;
  max_negative_advantage_importance_sampling_weight?: number | null;
  normalize_advantages?: boolean | null;
  num_trajectories_learning_rate_multiplier_power?: number | null;
  packed_sequence_length?: number | null;
  plot_tensors?: boolean | null;
  ppo?: boolean | null;
  precalculate_logprobs?: boolean | null;
  /** Changes nothing. */
  scale_learning_rate_by_reward_std_dev?: boolean | null;
  scale_rewards?: boolean | null;
  truncated_importance_sampling?: number | null;
}

const between = (name: string, low: number, high: number): JsonSchema =>
  nullable(number({ minimum: low, maximum: high }, `${name} must be between ${low} and ${high}, got {value}.`));

const whole = (name: string, low: number, high: number): JsonSchema =>
  nullable(integer({ minimum: low, maximum: high }, `${name} must be an integer from ${low} to ${high}, got {value}.`));

const properties: Record<keyof RlConfigBody, JsonSchema> = {
  advantage_balance: between('advantage_balance', -1, 1),
  allow_training_without_logprobs: nullable(boolean()),
  alt_k2_tau: between('alt_k2_tau', 0, 1000),
  beta: nullable({
    ...number({ minimum: 0, maximum: 0 }, 'beta is not supported: use kl_penalty_coef for a KL penalty. Got {value}.'),
  }),
  epsilon: between('epsilon', 0, 1000),
  epsilon_high: between('epsilon_high', 0, 1000),
  grad_accumulation_sequences: whole('grad_accumulation_sequences', 1, 1024),
  importance_sampling_level: { ...nullable(string()), enum: [...IMPORTANCE_SAMPLING_LEVELS, null] },
  kimi_k2_tau: between('kimi_k2_tau', 0, 1000),
  kl_penalty_coef: between('kl_penalty_coef', 0, 1000),
  kl_penalty_reference_step: whole('kl_penalty_reference_step', 0, Number.MAX_SAFE_INTEGER),
  kl_penalty_source: { ...nullable(string()), enum: [...KL_PENALTY_SOURCES, null] },
  kl_penalty_step_lag: whole('kl_penalty_step_lag', 0, Number.MAX_SAFE_INTEGER),
  kl_ref_adapter_path: {
    type: 'null',
    errorText: {
      type: 'kl_ref_adapter_path names a file of the client, which the server cannot read: use kl_penalty_reference_step.',
    },
  },
  learning_rate: between('learning_rate', 0, MAX_LEARNING_RATE),
  logprob_calculation_chunk_size: whole('logprob_calculation_chunk_size', 1, MAX_PACKED_SEQUENCE_LENGTH),
  loss_fn: { ...nullable(string()), enum: ['cispo', 'ppo', null] },
  mask_prob_ratio: nullable(boolean()),
  max_negative_advantage_importance_sampling_weight: between(
    'max_negative_advantage_importance_sampling_weight',
    0,
    1_000_000,
  ),
  normalize_advantages: nullable(boolean()),
  num_trajectories_learning_rate_multiplier_power: between('num_trajectories_learning_rate_multiplier_power', -4, 4),
  packed_sequence_length: whole('packed_sequence_length', 1, MAX_PACKED_SEQUENCE_LENGTH),
  plot_tensors: nullable(boolean()),
  ppo: nullable(boolean()),
  precalculate_logprobs: nullable(boolean()),
  scale_learning_rate_by_reward_std_dev: nullable(boolean()),
  scale_rewards: nullable(boolean()),
  truncated_importance_sampling: between('truncated_importance_sampling', 0, 1_000_000),
};

export const rlConfigSchema: JsonSchema = { type: ['object', 'null'], properties, additionalProperties: ONLY_UNSET };
