import { describe, expect, it } from 'vitest';
import { resolveRlConfig } from '../../../src/control/training/rl-config.ts';
import { checkLearningRates, learningRateOf, resolveSftConfig } from '../../../src/control/training/sft-config.ts';
import { rlConfigSchema, type RlConfigBody } from '../../../src/schemas/rl-config.ts';
import { sftConfigSchema, type SftConfigBody } from '../../../src/schemas/sft-config.ts';
import { compileBody, SchemaError } from '../../../src/schemas/validator.ts';
import { CLIENT_RL_CONFIG } from '../../fixtures/client-rl-config.ts';

const validate = compileBody<{ experimental_config: RlConfigBody | null }>({
  type: 'object',
  properties: { experimental_config: rlConfigSchema },
});
const resolve = (config: unknown) => resolveRlConfig(validate({ experimental_config: config }).experimental_config);

const validateSft = compileBody<{ config: SftConfigBody | null }>({
  type: 'object',
  properties: { config: sftConfigSchema },
});
const resolveSft = (config: unknown) => resolveSftConfig(validateSft({ config }).config);

function faultOf(act: () => unknown): string {
  try {
    act();
  } catch (error) {
    if (error instanceof SchemaError) return `${error.param}: ${error.message}`;
    return String(error);
  }
  return 'accepted';
}

describe('the configuration of an RL job', () => {
  it('takes what the clients send, and null as the default', () => {
    const config = resolve(CLIENT_RL_CONFIG);
    expect(config).toEqual({ ...resolve(null), learningRate: 1e-5 });
    expect(config.loss).toMatchObject({ ppo: false, epsilon: 1, epsilonHigh: 4, importanceSamplingLevel: 'token' });
    expect(resolve({})).toEqual(resolve(Object.fromEntries(Object.keys(CLIENT_RL_CONFIG).map((key) => [key, null]))));
    expect(resolve({}).learningRate).toBe(5e-6);
  });

  it('takes an unknown key that is left at its default, and no other', () => {
    expect(resolve({ a_newer_key: null })).toEqual(resolve({}));
    expect(resolveSft({ a_newer_key: null, metric_logging: { more: null } })).toEqual(
      resolveSft({ metric_logging: {} }),
    );
    const fault = 'experimental_config.a_newer_key: experimental_config.a_newer_key: Extra inputs are not permitted';
    for (const value of [false, 0, '', {}]) expect(faultOf(() => resolve({ a_newer_key: value }))).toContain(fault);
  });

  it('chooses the clip range by the loss', () => {
    expect(resolve({ ppo: true }).loss).toMatchObject({ ppo: true, epsilon: 0.2, epsilonHigh: 0.2 });
    expect(resolve({ loss_fn: 'ppo', epsilon: 0.1 }).loss).toMatchObject({ ppo: true, epsilon: 0.1, epsilonHigh: 0.1 });
    expect(resolve({ epsilon: 0.3, epsilon_high: null }).loss).toMatchObject({ epsilon: 0.3, epsilonHigh: 4 });
  });

  it('knows both names of a field', () => {
    expect(resolve({ kimi_k2_tau: 0.1 }).loss.tau).toBe(0.1);
    expect(resolve({ alt_k2_tau: 0.1, kimi_k2_tau: null }).loss.tau).toBe(0.1);
    expect(resolve({ scale_rewards: true, normalize_advantages: false }).scaleRewards).toBe(false);
    expect(resolve({ scale_rewards: false, normalize_advantages: true }).scaleRewards).toBe(false);
  });

  it('takes what changes nothing in the clients that send it', () => {
    expect(resolve({ scale_learning_rate_by_reward_std_dev: true, plot_tensors: true })).toEqual(resolve({}));
  });

  it('reads the KL reference', () => {
    expect(resolve({ kl_penalty_step_lag: 2 }).klPenalty).toBeNull();
    expect(resolve({ kl_penalty_coef: 0.1 }).klPenalty?.reference).toEqual({ kind: 'base' });
    expect(resolve({ kl_penalty_coef: 0.1, kl_penalty_step_lag: 2 }).klPenalty?.reference).toEqual({
      kind: 'lag',
      steps: 2,
    });
    const atStep = resolve({ kl_penalty_coef: 0.1, kl_penalty_reference_step: 3, kl_penalty_source: 'sample' });
    expect(atStep.klPenalty).toEqual({ coefficient: 0.1, source: 'sample', reference: { kind: 'step', step: 3 } });
  });

  it.each([
    [{ epsilon: -0.1 }, 'experimental_config.epsilon'],
    [{ epsilon_high: 1e300 }, 'experimental_config.epsilon_high'],
    [{ learning_rate: 1e9 }, 'experimental_config.learning_rate'],
    [{ learning_rate: -1e-5 }, 'experimental_config.learning_rate'],
    [{ learning_rate: '1e-5' }, 'experimental_config.learning_rate'],
    [{ advantage_balance: 1.5 }, 'experimental_config.advantage_balance'],
    [{ importance_sampling_level: 'word' }, 'experimental_config.importance_sampling_level'],
    [{ ppo: 1 }, 'experimental_config.ppo'],
    [{ ppo: true, loss_fn: 'cispo' }, 'experimental_config.loss_fn'],
    [{ alt_k2_tau: 0.1, kimi_k2_tau: 0.2 }, 'experimental_config.alt_k2_tau'],
    [{ beta: 0.1 }, 'experimental_config.beta'],
    [{ kl_ref_adapter_path: '/adapter' }, 'experimental_config.kl_ref_adapter_path'],
    [{ kl_penalty_step_lag: 1, kl_penalty_reference_step: 1 }, 'experimental_config.kl_penalty_step_lag'],
    [{ packed_sequence_length: 1e9 }, 'experimental_config.packed_sequence_length'],
    [{ packed_sequence_length: 1000 }, 'experimental_config.packed_sequence_length'],
    [{ scale_learning_rate_by_reward_std_dev: 1 }, 'experimental_config.scale_learning_rate_by_reward_std_dev'],
    [{ learning_rat: 1 }, 'experimental_config.learning_rat'],
    [{ constructor: 1 }, 'experimental_config.constructor'],
    [[], 'experimental_config'],
  ])('refuses %j by name', (config, field) => {
    expect(faultOf(() => resolve(config))).toContain(`${field}: `);
  });

  it('allows a row length that its chunks divide', () => {
    expect(resolve({ packed_sequence_length: 512, logprob_calculation_chunk_size: 256 }).packedSequenceLength).toBe(
      512,
    );
  });
});

describe('the configuration of an SFT job', () => {
  it('has defaults', () => {
    const defaults = { batchSize: 2, learningRate: 5e-5, assistantTurns: 'all' };
    expect(resolveSft(null)).toMatchObject(defaults);
    expect(resolveSft({ batch_size: 'auto', learning_rate: null, assistant_turns: null })).toMatchObject(defaults);
  });

  it('takes one rate or one per batch', () => {
    const config = resolveSft({ batch_size: 1, learning_rate: [1e-4, 5e-5] });
    expect([learningRateOf(config, 0), learningRateOf(config, 1)]).toEqual([1e-4, 5e-5]);
    expect(learningRateOf(resolveSft({ learning_rate: 0.5 }), 7)).toBe(0.5);
    expect(() => checkLearningRates(config, 2)).not.toThrow();
    expect(() => checkLearningRates(config, 3)).toThrow('config.learning_rate: has 2 values for 3 batches.');
  });

  it.each([
    [{ batch_size: 0 }, 'config.batch_size'],
    [{ batch_size: 1.5 }, 'config.batch_size'],
    [{ batch_size: 'large' }, 'config.batch_size'],
    [{ learning_rate: [] }, 'config.learning_rate'],
    [{ learning_rate: [1e-4, -1] }, 'config.learning_rate.1'],
    [{ learning_rate: 2 }, 'config.learning_rate'],
    [{ assistant_turns: 'first' }, 'config.assistant_turns'],
    [{ metric_logging: { enable: true } }, 'config.metric_logging.enable'],
    [{ metric_logging: { target_training_step: 1e300 } }, 'config.metric_logging.target_training_step'],
    [{ epochs: 3 }, 'config.epochs'],
  ])('refuses %j by name', (config, field) => {
    expect(faultOf(() => resolveSft(config))).toContain(`${field}: `);
  });
});
