/** config of an SFT training job. null, like an absent key, means the default. */
import { ONLY_UNSET, boolean, integer, nullable, string, type JsonSchema } from './json-schema.ts';

const MAX_SFT_BATCH_SIZE = 4096;
/** One learning rate per batch. */
const MAX_LEARNING_RATES = 1_000_000;

export interface MetricLoggingBody {
  enabled?: boolean | null;
  target_training_step?: number | null;
}

export interface SftConfigBody {
  assistant_turns?: 'all' | 'last' | null;
  batch_size?: number | 'auto' | null;
  learning_rate?: number | number[] | null;
  metric_logging?: MetricLoggingBody | null;
}

const RATE = 'learning_rate must be between 0 and 1, got {value}.';
const rate: JsonSchema = { type: 'number', minimum: 0, maximum: 1, errorText: { minimum: RATE, maximum: RATE } };
const SIZE = `batch_size must be "auto" or an integer from 1 to ${MAX_SFT_BATCH_SIZE}, got {value}.`;

const properties: Record<keyof SftConfigBody, JsonSchema> = {
  assistant_turns: { ...nullable(string()), enum: ['all', 'last', null] },
  batch_size: {
    type: ['integer', 'string', 'null'],
    minimum: 1,
    maximum: MAX_SFT_BATCH_SIZE,
    pattern: '^auto$',
    errorText: { minimum: SIZE, maximum: SIZE, pattern: SIZE },
  },
  learning_rate: {
    type: ['number', 'array', 'null'],
    minimum: 0,
    maximum: 1,
    minItems: 1,
    maxItems: MAX_LEARNING_RATES,
    items: rate,
    errorText: { minimum: RATE, maximum: RATE, minItems: 'learning_rate must not be an empty list.' },
  },
  metric_logging: {
    type: ['object', 'null'],
    properties: {
      enabled: nullable(boolean()),
      target_training_step: nullable(integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER })),
    },
    additionalProperties: ONLY_UNSET,
  },
};

export const sftConfigSchema: JsonSchema = { type: ['object', 'null'], properties, additionalProperties: ONLY_UNSET };

/** experimental_config of an SFT training job: no key is known yet. */
export const sftExperimentalConfigSchema: JsonSchema = {
  type: ['object', 'null'],
  properties: {},
  additionalProperties: ONLY_UNSET,
};
