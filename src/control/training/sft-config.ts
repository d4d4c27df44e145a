/** From the config of an SFT job to the values that it runs with. */
import type { SftConfigBody } from '../../schemas/sft-config.ts';
import { TrainingInputError } from './errors.ts';

export interface SftConfig {
  batchSize: number;
  /** One for all batches, or one per batch in order. */
  learningRate: number | number[];
  assistantTurns: 'all' | 'last';
  /** Per-step metrics go into the model's run under `sft/`. */
  metricLogging: { enabled: boolean; targetTrainingStep: number | null };
}

const DEFAULT_SFT_BATCH_SIZE = 2;
const DEFAULT_SFT_LEARNING_RATE = 5e-5;

/** `body` has passed sftConfigSchema. */
export function resolveSftConfig(body: SftConfigBody | null): SftConfig {
  const { batch_size: size = null, learning_rate: rate = null } = body ?? {};
  return {
    batchSize: typeof size === 'number' ? size : DEFAULT_SFT_BATCH_SIZE,
    learningRate: rate ?? DEFAULT_SFT_LEARNING_RATE,
    assistantTurns: body?.assistant_turns ?? 'all',
    metricLogging: {
      enabled: body?.metric_logging?.enabled ?? false,
      targetTrainingStep: body?.metric_logging?.target_training_step ?? null,
    },
  };
}

/** Throws where a list of rates does not reach all batches. */
export function checkLearningRates(config: SftConfig, batches: number): void {
  if (typeof config.learningRate === 'number' || config.learningRate.length >= batches) return;
  const { length } = config.learningRate;
  throw new TrainingInputError('config.learning_rate', `has ${length} values for ${batches} batches.`);
}

export function learningRateOf(config: SftConfig, batch: number): number {
  return typeof config.learningRate === 'number' ? config.learningRate : (config.learningRate[batch] ?? 0);
}
