/** Tells of steps: events for the client, rows of the model's run, progress for the operator. */
import { performance } from 'node:perf_hooks';
import type { JobPlan, StepMetrics } from './plan.ts';
import { lastRowOf, type TrainingJob, type TrainingPorts } from './ports.ts';
import { resolveSftConfig } from './sft-config.ts';
import type { JobSnapshot } from './snapshot.ts';

export class StepReporter {
  readonly #ports: TrainingPorts;
  readonly #job: TrainingJob;
  readonly #plan: JobPlan;
  readonly #firstStep: number;
  readonly #totals: JobSnapshot['totals'];
  readonly #startedAt = performance.now();
  #stepAt = performance.now();

  /** `from`: where the steps begin. */
  constructor(ports: TrainingPorts, job: TrainingJob, plan: JobPlan, from: JobSnapshot) {
    this.#ports = ports;
    this.#job = job;
    this.#plan = plan;
    this.#firstStep = from.step;
    this.#totals = structuredClone(from.totals);
  }

  totals(): JobSnapshot['totals'] {
    return structuredClone(this.#totals);
  }

  /** Step `number` from 1 is done. */
  async step(number: number, metrics: StepMetrics): Promise<void> {
    const { events } = this.#ports;
    for (const [name, value] of Object.entries(metrics)) {
      const [sum, count] = this.#totals[name] ?? [0, 0];
      this.#totals[name] = [sum + value, count + 1];
    }
    const data = { gradient_step: number, ...metrics, ...this.#speed(number, metrics) };
    await events.append(this.#job.id, `step-${number}`, 'gradient_step', data);
    await this.#logStep(number, metrics);
    const { id: jobId, modelId } = this.#job;
    this.#ports.progress({ jobId, modelId, step: number, steps: this.#plan.steps, metrics: data });
  }

  #speed(number: number, metrics: StepMetrics): StepMetrics {
    const now = performance.now();
    const seconds = Math.max(now - this.#stepAt, 1e-3) / 1000;
    const perStep = (now - this.#startedAt) / 1000 / (number - this.#firstStep);
    this.#stepAt = now;
    return {
      tokens_per_second: (metrics['num_tokens'] ?? 0) / seconds,
      eta_seconds: perStep * (this.#plan.steps - number),
    };
  }

  /** SFT steps go into the run where the client asked for it. */
  async #logStep(number: number, metrics: StepMetrics): Promise<void> {
    if (this.#job.kind !== 'sft') return;
    const { enabled, targetTrainingStep } = resolveSftConfig(this.#job.config).metricLogging;
    if (!enabled) return;
    const row = { 'sft/gradient_step': number, ...prefixed('sft', metrics) };
    const step = targetTrainingStep ?? (await this.#nextStep());
    await this.#ports.run.record(this.#job.modelId, `${this.#job.id}/step-${number}`, step, row);
  }

  /** One row of means for the whole job; where it had no step to take, of what it was given. */
  async finish(): Promise<void> {
    const { steps, summary } = this.#plan;
    const told = steps === 0 ? given(summary) : this.#means();
    const row = { ...prefixed('train', told), 'train/num_gradient_steps': steps };
    await this.#ports.run.record(this.#job.modelId, lastRowOf(this.#job.id), await this.#nextStep(), row);
  }

  #means(): StepMetrics {
    // The share of all steps: those that were not skipped do not say so.
    const countOf = (name: string, count: number) => (name === 'skipped_step' ? this.#plan.steps : count);
    const means = Object.entries(this.#totals).map(([name, [sum, count]]) => [name, sum / countOf(name, count)]);
    return Object.fromEntries(means) as StepMetrics;
  }

  /** Not one more than where the job began: the newest steps may have been deleted, and are not given again. */
  #nextStep(): Promise<number> {
    return this.#ports.checkpoints.nextStep(this.#job.modelId);
  }
}

function prefixed(prefix: string, metrics: StepMetrics): StepMetrics {
  return Object.fromEntries(Object.entries(metrics).map(([name, value]) => [`${prefix}/${name}`, value]));
}

/** No trajectories have no reward, which is not one of 0. */
function given(summary: StepMetrics): StepMetrics {
  if (summary['num_trajectories'] !== 0) return summary;
  return Object.fromEntries(Object.entries(summary).filter(([name]) => !/^reward(_std_dev)?$/.test(name)));
}
