/** Bodies of the model endpoints under /v1/preview. */
import { array, boolean, integer, nullable, string, type JsonSchema } from '../json-schema.ts';
import { compilePreview } from './validator.ts';

/** Names become parts of `wandb-artifact:///entity/project/name:step3`: nothing that separates there, nothing unseen. */
const PROJECT_PATTERN = '^(?!\\.{1,2}$)[^/\\\\#?%:\\u0000-\\u001f\\u007f-\\u009f\\u2028\\u2029]+$';
const NAME_PATTERN = '^(?!\\.{1,2}$)[A-Za-z0-9._-]+$';

const nameField = (pattern: string, rule: string): JsonSchema => ({
  ...string({ minLength: 1, maxLength: 128, pattern }),
  errorText: { pattern: rule },
});

export const projectField = nameField(
  PROJECT_PATTERN,
  'A project may have any printable characters but / \\ # ? % and :, 128 at most.',
);
export const modelNameField = nameField(
  NAME_PATTERN,
  'A name may have letters, digits, dots, hyphens and underscores, 128 at most.',
);
export const entityField = nullable(nameField(PROJECT_PATTERN, 'An entity may have no / \\ # ? % and :.'));

export interface ModelCreate {
  project: string;
  name: string;
  base_model: string;
  entity?: string | null;
  return_existing?: boolean;
}

const createProperties: Record<keyof ModelCreate, JsonSchema> = {
  project: projectField,
  name: modelNameField,
  base_model: string({ minLength: 1, maxLength: 512 }),
  entity: entityField,
  return_existing: boolean(),
};

export const validateModelCreate = compilePreview<ModelCreate>({
  type: 'object',
  required: ['project', 'name', 'base_model'],
  properties: createProperties,
  additionalProperties: false,
});

export interface ModelResponse {
  id: string;
  entity: string;
  project: string;
  name: string;
  base_model: string;
  run_id: string;
}

/** Steps of one request. */
const MAX_DELETED_STEPS = 10_000;

export interface CheckpointsDelete {
  steps: number[];
}

const step: JsonSchema = {
  ...integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }),
  errorText: {
    minimum: 'A step is not negative, got {value}.',
    maximum: `A step is at most ${Number.MAX_SAFE_INTEGER}, got {value}.`,
  },
};

export const validateCheckpointsDelete = compilePreview<CheckpointsDelete>({
  type: 'object',
  required: ['steps'],
  properties: {
    steps: array(step, { maxItems: MAX_DELETED_STEPS }),
  },
  additionalProperties: false,
});

export interface CheckpointItem {
  id: string;
  step: number;
  metrics: Record<string, number>;
}

export interface CheckpointsDeleted {
  deleted_count: number;
  not_found_steps: number[];
}

export interface ModelDeleted {
  model_id: string;
  deleted_checkpoints: number;
  deleted_run: boolean;
}
