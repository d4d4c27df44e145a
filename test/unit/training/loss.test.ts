import { describe, expect, it } from 'vitest';
import {
  groupAdvantages,
  normalizeWeights,
  populationStandardDeviation,
  trajectoryWeight,
} from '../../../src/control/training/advantages.ts';
import { rowLoss, type LossTokens } from '../../../src/control/training/loss.ts';
import { resolveRlConfig } from '../../../src/control/training/rl-config.ts';
import type { RlConfigBody } from '../../../src/schemas/rl-config.ts';
import { hasSharedData, sharedJson } from '../sessions/shared-data.ts';

// One group of four trajectories in one row.
const REWARDS = [1, 0, 0, 0.5];
const LENGTHS = [2, 3, 1, 4];
const OLD = [-1.098, -1.43, -1.206, -1.09, -0.847, -1.292, -0.875, -1.784, -1.927, -0.767];
const NEW = [-1.04, -0.848, -0.902, -1.041, -0.669, -1.159, -0.277, -1.866, -1.802, -1.109];
const REFERENCE = OLD.map((value, t) => value - 0.05 * t);
const CISPO_GRADIENTS = [
  -0.220774, -0.372836, 0.112939, 0.087518, 0.099569, 0.285562, -0.037885, -0.019193, -0.023607, -0.014799,
];

/** Losses of the reference client, computed with its own code. */
const LOSSES: [RlConfigBody, number][] = [
  [{}, 0.060475],
  [{ ppo: true }, 0.032215],
  [{ ppo: true, importance_sampling_level: 'sequence' }, -0.005831],
  [{ importance_sampling_level: 'average' }, 0.062414],
  [{ importance_sampling_level: 'geometric_average' }, 0.057323],
  [{ mask_prob_ratio: true, epsilon: 0.2, epsilon_high: 0.2 }, -0.076425],
  [{ ppo: true, max_negative_advantage_importance_sampling_weight: 1.1 }, 0.016086],
  [{ kimi_k2_tau: 0.1 }, 0.038592],
  [{ truncated_importance_sampling: 1 }, 0.052902],
  [{ kl_penalty_coef: 0.1, kl_penalty_source: 'current_learner' }, 0.061164],
  [{ kl_penalty_coef: 0.1, kl_penalty_source: 'sample' }, 0.06327],
];

function sequencesOf(balance: number, scale = true) {
  const advantages = groupAdvantages(REWARDS, scale);
  const sequences = LENGTHS.map((trainableTokens, i) => ({
    trainableTokens,
    advantage: advantages[i] ?? 0,
    weight: trajectoryWeight(trainableTokens),
  }));
  normalizeWeights(sequences, balance);
  return sequences;
}

const perToken = (values: number[]): Float64Array =>
  Float64Array.from(values.flatMap((value, i) => Array<number>(LENGTHS[i] ?? 0).fill(value)));

function tokensOf(over: Partial<LossTokens> = {}): LossTokens {
  const sequences = sequencesOf(0);
  return {
    newLogprobs: Float64Array.from(NEW),
    oldLogprobs: Float64Array.from(OLD),
    sampleLogprobs: null,
    referenceLogprobs: Float64Array.from(REFERENCE),
    entropies: new Float64Array(NEW.length).fill(2),
    advantages: perToken(sequences.map(({ advantage }) => advantage)),
    weights: perToken(sequences.map(({ weight }) => weight)),
    sequence: Int32Array.from(perToken([0, 1, 2, 3])),
    sequences: 4,
    ...over,
  };
}

const lossOf = (config: RlConfigBody, over: Partial<LossTokens> = {}) =>
  rowLoss(tokensOf(over), resolveRlConfig(config).loss);

function expectClose(values: ArrayLike<number>, expected: readonly number[], bound: number): void {
  expect(values.length).toBe(expected.length);
  const errors = expected.map((value, i) => Math.abs(value - (values[i] ?? NaN)));
  expect(Math.max(...errors)).toBeLessThanOrEqual(bound);
}

describe('advantages and weights', () => {
  it.each([
    [0, [1.666667, -1, -1, 0.333333]],
    [0.5, [2.222222, -0.666667, -0.666667, 0.444444]],
    [-0.5, [1.111111, -1.333333, -1.333333, 0.222222]],
  ])('with balance %f', (balance, expected) => {
    const sequences = sequencesOf(balance);
    expectClose(
      sequences.map(({ advantage }) => advantage),
      expected,
      1e-5,
    );
    expectClose(
      sequences.map(({ weight }) => weight),
      [1.25, 0.833333, 2.5, 0.625],
      1e-5,
    );
  });

  it('take the mean away and divide by the population deviation', () => {
    expect(groupAdvantages([1, 3], false)).toEqual([-1, 1]);
    expectClose(
      groupAdvantages([1, 3, 5, 7], true),
      [-3, -1, 1, 3].map((x) => x / (Math.sqrt(5) + 1e-6)),
      1e-12,
    );
    expect(populationStandardDeviation([1, 3, 5, 7])).toBeCloseTo(Math.sqrt(5), 12);
  });

  it('are exactly zero where all rewards are equal', () => {
    expect(groupAdvantages([0.1, 0.1, 0.1], true)).toEqual([0, 0, 0]);
    expect(groupAdvantages([0.7], true)).toEqual([0]);
    expect(groupAdvantages([], true)).toEqual([]);
  });

  it('cancel the scale of one group', () => {
    const scaled = sequencesOf(0, true).map(({ advantage }) => advantage);
    expectClose(
      sequencesOf(0, false).map(({ advantage }) => advantage),
      scaled,
      1e-12,
    );
  });

  it('stay finite where the balance takes every advantage away', () => {
    const sequences = [{ trainableTokens: 2, advantage: -1, weight: 1 }];
    normalizeWeights(sequences, 1);
    expect(sequences[0]?.advantage).toBeCloseTo(0);
  });
});

describe('the loss', () => {
  it.each(LOSSES)('of %j is the reference client’s', (config, expected) => {
    expect(Math.abs(lossOf(config).loss - expected)).toBeLessThanOrEqual(1e-6);
  });

  it('has the reference client’s gradients and metrics', () => {
    const cispo = lossOf({});
    expectClose(cispo.gradients, CISPO_GRADIENTS, 1e-6);
    expect(cispo.probsCorr).toBeCloseTo(0.67583, 5);
    expect(cispo.entropy).toBeCloseTo(2, 6);
    expect(cispo.klPolicyRef).toBeNull();
    const clipped = CISPO_GRADIENTS.map((value, i) => (i === 1 || i === 6 ? 0 : value));
    expectClose(lossOf({ ppo: true }).gradients, clipped, 1e-6);
    expect(lossOf({ kl_penalty_coef: 0.1 }).klPolicyRef).toBeCloseTo(0.3853, 6);
    expect(lossOf({ kl_penalty_coef: 0.1, kl_penalty_source: 'sample' }).klPolicyRef).toBeCloseTo(0.225, 6);
  });

  it('leaves out what the mask takes, below one bound and above another, where truncation makes it count', () => {
    const ratios = [0.7, 0.79, 0.81, 1.4, 1.6];
    const count = ratios.length;
    const fill = (value: number) => new Float64Array(count).fill(value);
    const config = { mask_prob_ratio: true, epsilon: 0.2, epsilon_high: 0.5, truncated_importance_sampling: 2 };
    const { gradients } = lossOf(config, {
      newLogprobs: Float64Array.from(ratios, (ratio) => -1 + Math.log(ratio)),
      oldLogprobs: fill(-1),
      entropies: fill(0),
      advantages: fill(1),
      weights: fill(1),
      sequence: new Int32Array(count),
      sequences: 1,
    });
    expect([...gradients].map((gradient) => gradient !== 0)).toEqual([false, false, true, true, false]);
  });

  it('is truncated by old over new where the rollout has no log-probability', () => {
    const [plain, truncated] = [{}, { truncated_importance_sampling: 100 }].map((config) =>
      lossOf(config, { sampleLogprobs: new Float64Array(NEW.length).fill(NaN) }),
    );
    const factors = OLD.map((old, i) => Math.exp(old - (NEW[i] ?? 0)));
    expectClose(
      truncated!.gradients,
      factors.map((factor, i) => factor * (plain!.gradients[i] ?? 0)),
      1e-12,
    );
  });

  it.skipIf(!hasSharedData)('has the gradients of every golden case (needs ../shared/data)', () => {
    interface Case {
      name: string;
      config: RlConfigBody;
      loss: number;
      grad: number[];
    }
    const { cases } = sharedJson('vectors', 'rl-loss.json') as { cases: Case[] };
    expect(cases.length).toBeGreaterThan(10);
    for (const { config, loss, grad } of cases) {
      const result = lossOf(config);
      expect(Math.abs(result.loss - loss)).toBeLessThanOrEqual(1e-5);
      expectClose(result.gradients, grad, 1e-5);
    }
  });

  it.each(['token', 'sequence', 'average', 'geometric_average'] as const)(
    'has the slope of its own value at level %s',
    (level) => {
      const config: RlConfigBody = { ppo: true, epsilon: 0.5, epsilon_high: 0.3, importance_sampling_level: level };
      const { gradients } = lossOf(config);
      const h = 1e-6;
      const slopes = NEW.map((_, i) => {
        const at = (step: number) =>
          lossOf(config, { newLogprobs: Float64Array.from(NEW, (value, j) => (j === i ? value + step : value)) }).loss;
        return (at(h) - at(-h)) / (2 * h);
      });
      expectClose(gradients, slopes, 1e-8);
    },
  );

  it('takes an unknown old log-probability as the new one, and lets its gradient through', () => {
    const oldLogprobs = new Float64Array(NEW.length).fill(NaN);
    const cispo = lossOf({}, { oldLogprobs });
    const { advantages, weights } = tokensOf();
    expectClose(
      cispo.gradients,
      [...advantages].map((advantage, i) => (-advantage * (weights[i] ?? 0)) / NEW.length),
      1e-12,
    );
    expect(cispo.probsCorr).toBe(0);
    expectClose(lossOf({ ppo: true }, { oldLogprobs }).gradients, [...cispo.gradients], 1e-12);
  });

  it('truncates by old over rollout where the old ones were computed anew', () => {
    const sampleLogprobs = Float64Array.from(OLD, (value, i) => (i === 0 ? value + 1 : value - 1));
    const result = lossOf({ truncated_importance_sampling: 2 }, { sampleLogprobs });
    const plain = lossOf({});
    expect(result.gradients[0]).toBeCloseTo((plain.gradients[0] ?? 0) * Math.exp(-1), 12);
    expect(result.gradients[1]).toBeCloseTo((plain.gradients[1] ?? 0) * 2, 12);
  });

  it('masks nothing for CISPO unless epsilon is 1', () => {
    const masked = lossOf({ mask_prob_ratio: true, epsilon: 1, epsilon_high: 0.1 });
    expect(masked.gradients[1]).toBeCloseTo(0, 12);
    expect(lossOf({ mask_prob_ratio: true, epsilon: 0.2, epsilon_high: 0.1 }).gradients[1]).not.toBeCloseTo(0, 3);
  });
});
