/** The steps of an RL job: one optimizer step per packed row, or per so many rows. */
import type { AdapterWeights, OptimizerStep, RowScores } from '../engine/training.ts';
import { MAX_LEARNING_RATE } from '../../schemas/rl-config.ts';
import { mean } from './advantages.ts';
import { TrainingInputError } from './errors.ts';
import { policyLag } from './group-outcomes.ts';
import { rowLoss, type RowLoss } from './loss.ts';
import type { JobPlan, StepContext, StepMetrics } from './plan.ts';
import type { RlBatch, RlRow, RlStats } from './rl-batch.ts';
import type { RlConfig } from './rl-config.ts';

export interface RlPlanInput {
  batch: RlBatch;
  config: RlConfig;
  /** What the KL penalty compares with; null without one. */
  reference: 'base' | AdapterWeights | null;
  /** The model's step when the job started. */
  modelStep: number;
}

const OPTIMIZER: Omit<OptimizerStep, 'learningRate'> = {
  beta1: 0.9,
  beta2: 0.99,
  eps: 1e-8,
  weightDecay: 0.1,
  maxGradNorm: 0.1,
};

export class RlPlan implements JobPlan {
  readonly kind = 'rl';
  readonly steps: number;
  readonly summary: StepMetrics;
  readonly #input: RlPlanInput;
  /** Where each row's tokens begin among all of the job. */
  readonly #offsets: number[];

  constructor(input: RlPlanInput) {
    const { rows, stats } = input.batch;
    this.#input = input;
    this.steps = Math.ceil(rows.length / input.config.rowsPerStep);
    this.summary = groupMetrics(stats, input.modelStep);
    let offset = 0;
    this.#offsets = rows.map(({ packed }) => (offset += packed.at.length) - packed.at.length);
    for (let index = 0; index < this.steps; index++) this.#checkLearningRate(this.#rowsOf(index));
  }

  /** The multiplier grows with what was packed: no schema can bound it. */
  #checkLearningRate(rows: readonly RlRow[]): void {
    const rate = this.#learningRate(rows);
    if (rate <= MAX_LEARNING_RATE) return;
    throw new TrainingInputError(
      'experimental_config.num_trajectories_learning_rate_multiplier_power',
      `makes a learning rate of ${rate} for a step of ${sequencesOf(rows)} sequences; at most ${MAX_LEARNING_RATE}.`,
    );
  }

  #learningRate(rows: readonly RlRow[]): number {
    const { learningRate, learningRateMultiplierPower } = this.#input.config;
    return learningRate * sequencesOf(rows) ** learningRateMultiplierPower;
  }

  #rowsOf(index: number): RlRow[] {
    const { batch, config } = this.#input;
    return batch.rows.slice(index * config.rowsPerStep, (index + 1) * config.rowsPerStep);
  }

  async prepare({ session, check }: Omit<StepContext, 'logprobs'>): Promise<Float32Array | null> {
    const { batch, config } = this.#input;
    if (!config.precalculateLogprobs) return null;
    const all = new Float32Array(batch.rows.reduce((sum, { packed }) => sum + packed.at.length, 0));
    for (const [i, { packed }] of batch.rows.entries()) {
      check();
      const scores = await session.forward(packed.row, 'current');
      all.set(pick(scores.logprobs, packed.at), this.#offsets[i]);
    }
    return all;
  }

  async step(index: number, context: StepContext): Promise<StepMetrics> {
    const from = index * this.#input.config.rowsPerStep;
    const rows = this.#rowsOf(index);
    const losses: RowLoss[] = [];
    for (const [i, row] of rows.entries()) losses.push(await this.#row(row, from + i, rows.length, context));
    context.check();
    const learningRate = this.#learningRate(rows);
    const { gradNorm, applied } = await context.session.optimize({ ...OPTIMIZER, learningRate });
    return {
      ...lossMetrics(losses),
      ...this.summary,
      grad_norm: gradNorm,
      learning_rate: learningRate,
      num_datums: sequencesOf(rows),
      num_tokens: rows.reduce((sum, { packed }) => sum + packed.row.tokens.length, 0),
      num_trainable_tokens: rows.reduce((sum, { packed }) => sum + packed.at.length, 0),
      ...(applied ? {} : { skipped_step: 1 }),
    };
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  /** Forward, loss, backward; the gradients of a step's rows are averaged. */
  async #row(row: RlRow, index: number, rowsOfStep: number, context: StepContext): Promise<RowLoss> {
    const { session, check } = context;
    const { packed } = row;
    const { reference } = this.#input;
    check();
    const referenceScores = reference === null ? null : await session.forward(packed.row, reference);
    check();
    const scores = await session.forward(packed.row, 'current');
    const result = this.#loss(row, index, scores, referenceScores, context.logprobs);
    const gradients = new Float32Array(packed.row.tokens.length);
    packed.at.forEach((at, i) => (gradients[at] = (result.gradients[i] ?? 0) / rowsOfStep));
    check();
    await session.backward(gradients);
    return result;
  }

  #loss(
    { packed, advantages, weights, oldLogprobs }: RlRow,
    index: number,
    scores: RowScores,
    reference: RowScores | null,
    precalculated: Float32Array | null,
  ): RowLoss {
    const offset = this.#offsets[index] ?? 0;
    const computed = precalculated
      ? Float64Array.from(precalculated.subarray(offset, offset + packed.at.length))
      : null;
    const tokens = {
      newLogprobs: pick(scores.logprobs, packed.at),
      oldLogprobs: computed ?? oldLogprobs,
      sampleLogprobs: computed ? oldLogprobs : null,
      referenceLogprobs: reference ? pick(reference.logprobs, packed.at) : null,
      entropies: pick(scores.entropies, packed.at),
      advantages,
      weights,
      sequence: packed.member,
      sequences: packed.members.length,
    };
    return rowLoss(tokens, this.#input.config.loss);
  }
}

function sequencesOf(rows: readonly RlRow[]): number {
  return rows.reduce((sum, { packed }) => sum + packed.members.length, 0);
}

function pick(values: Float32Array, at: Int32Array): Float64Array {
  return Float64Array.from(at, (index) => values[index] ?? 0);
}

function lossMetrics(losses: readonly RowLoss[]): StepMetrics {
  const loss = mean(losses.map((row) => row.loss));
  const kl = losses.flatMap(({ klPolicyRef }) => (klPolicyRef === null ? [] : [klPolicyRef]));
  return {
    loss,
    policy_loss: loss,
    entropy: mean(losses.map(({ entropy }) => entropy)),
    probs_corr: mean(losses.map(({ probsCorr }) => probsCorr)),
    ...(kl.length > 0 ? { kl_policy_ref: mean(kl) } : {}),
  };
}

function groupMetrics(stats: RlStats, modelStep: number): StepMetrics {
  const lag = policyLag(modelStep, stats.versions);
  return {
    reward: stats.reward,
    reward_std_dev: stats.rewardStdDev,
    exception_rate: stats.exceptionRate,
    num_groups_submitted: stats.groupsSubmitted,
    num_groups_trainable: stats.groupsTrainable,
    num_trajectories: stats.trajectories,
    num_dropped_trajectories: stats.dropped,
    ...(lag === null ? {} : { policy_lag: lag }),
  };
}
