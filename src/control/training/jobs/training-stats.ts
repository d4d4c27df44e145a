/** Numbers of the training side for /metrics and the log line. No label can be grown by a client. */
import type { Logger } from 'pino';
import type { TrainingProgress } from '../ports.ts';

/** Of the last gradient step of whatever job took it; null before the first. */
export interface StepNumbers {
  tokensPerSecond: number | null;
  /** null as well where that job runs no more. */
  etaSeconds: number | null;
}

export class TrainingStats {
  readonly last: StepNumbers = { tokensPerSecond: null, etaSeconds: null };
  steps = 0;
  tokens = 0;
  skippedSteps = 0;
  readonly #log: Logger;

  constructor(log: Logger) {
    this.#log = log;
  }

  progress({ jobId, modelId, step, steps, metrics }: TrainingProgress): void {
    const read = (name: string): number | null => {
      const value = metrics[name];
      return typeof value === 'number' ? value : null;
    };
    this.steps++;
    this.tokens += read('num_tokens') ?? 0;
    if (read('skipped_step') === 1) this.skippedSteps++;
    this.last.tokensPerSecond = read('tokens_per_second');
    this.last.etaSeconds = read('eta_seconds');
    this.#log.info(
      {
        job: jobId,
        model: modelId,
        step,
        steps,
        loss: read('loss'),
        reward: read('reward'),
        tokensPerSecond: this.last.tokensPerSecond,
        etaSeconds: this.last.etaSeconds,
      },
      'gradient step',
    );
  }

  /** The job runs no more, however it came to rest. */
  rest(): void {
    this.last.etaSeconds = null;
  }
}
