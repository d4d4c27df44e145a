/**
 * Prometheus metrics of training: how much of it there is, and how fast. How it goes (losses, rewards) is its entity's own, told by the job's
 * events and the model's run.
 */
import { Counter, Gauge, type Registry } from 'prom-client';
import { JOB_STATES } from '../control/lifecycle.ts';
import type { TrainingServices } from '../control/training/services.ts';

const PREFIX = 'tandem_training_';

/** Reads the services when it is asked. */
export function trainingMetrics(registry: Registry, services: Pick<TrainingServices, 'stats' | 'jobCounts'>): void {
  const { stats } = services;
  new Gauge({
    name: `${PREFIX}jobs`,
    help: 'Training jobs by state.',
    labelNames: ['state'],
    registers: [registry],
    async collect() {
      const counts = await services.jobCounts();
      for (const state of JOB_STATES) this.set({ state }, counts.get(state) ?? 0);
    },
  });
  const gauge = (name: string, help: string, read: () => number | null) =>
    new Gauge({
      name: `${PREFIX}${name}`,
      help,
      registers: [registry],
      collect() {
        this.set(read() ?? 0);
      },
    });
  gauge('tokens_per_second', 'Of the last gradient step.', () => stats.last.tokensPerSecond);
  gauge(
    'eta_seconds',
    'Time left to the running job, as estimated at its last gradient step; 0 where none runs.',
    () => stats.last.etaSeconds,
  );
  const counter = (name: string, help: string, read: () => number) => {
    let last = 0;
    new Counter({
      name: `${PREFIX}${name}`,
      help,
      registers: [registry],
      collect() {
        this.inc(read() - last);
        last = read();
      },
    });
  };
  counter('gradient_steps_total', 'Gradient steps taken.', () => stats.steps);
  counter(
    'skipped_steps_total',
    'Gradient steps that changed nothing: a gradient was not finite.',
    () => stats.skippedSteps,
  );
  counter('tokens_total', 'Tokens of the rows of gradient steps.', () => stats.tokens);
}
