/** Bodies of the training job endpoints. `trajectory_groups` is read apart from the rest: it may be large. */
import { rlConfigSchema, type RlConfigBody } from '../rl-config.ts';
import { sftConfigSchema, sftExperimentalConfigSchema, type SftConfigBody } from '../sft-config.ts';
import { string, type JsonSchema } from '../json-schema.ts';
import { UUID_PATTERN } from './uuid.ts';
import { compilePreview } from './validator.ts';

const modelId: JsonSchema = {
  ...string({ maxLength: 64, pattern: UUID_PATTERN }),
  errorText: { pattern: 'Input should be a valid UUID' },
};

export interface RlJobFields {
  model_id: string;
  /** Here only where it was no array: read apart from the rest, and checked there. */
  trajectory_groups?: unknown;
  experimental_config?: RlConfigBody | null;
}

export const validateRlJobFields = compilePreview<RlJobFields>({
  type: 'object',
  required: ['model_id'],
  properties: { model_id: modelId, trajectory_groups: {}, experimental_config: rlConfigSchema },
  additionalProperties: false,
});

export interface SftJobBody {
  model_id: string;
  training_data_url: string;
  config?: SftConfigBody | null;
  experimental_config?: Record<string, never> | null;
}

export const validateSftJob = compilePreview<SftJobBody>({
  type: 'object',
  required: ['model_id', 'training_data_url'],
  properties: {
    model_id: modelId,
    training_data_url: string({ minLength: 1, maxLength: 4096 }),
    config: sftConfigSchema,
    experimental_config: sftExperimentalConfigSchema,
  },
  additionalProperties: false,
});

export interface TrainingJobCreated {
  id: string;
}

export interface TrainingJobResponse {
  id: string;
  model_id: string;
  kind: 'rl' | 'sft';
  status: string;
  created_at: string;
  training_start: string | null;
  training_end: string | null;
  error_message: string | null;
  /** Gradient steps taken, and how many there will be once that is known. */
  progress: { gradient_steps: number; num_sequences: number | null };
}

export interface TrainingEventItem {
  id: string;
  type: string;
  data: Record<string, unknown>;
}
