/** Body of POST /v1/preview/models/{model_id}/log beside its trajectory groups, and what reading logs answers. */
import { string, type JsonSchema } from '../json-schema.ts';
import { compilePreview } from './validator.ts';

export interface LogFields {
  split: string;
  /** Clients repeat the path's. */
  model_id?: string;
}

const split: JsonSchema = {
  ...string({ minLength: 1, maxLength: 64, pattern: '^[^\\u0000-\\u001f\\u007f]+$' }),
  errorText: { pattern: 'A split may have any printable characters.' },
};

export const validateLogFields = compilePreview<LogFields>({
  type: 'object',
  required: ['split'],
  // trajectory_groups: here only where it was no array; read apart from the rest, and checked there.
  properties: { split, model_id: string({ maxLength: 64 }), trajectory_groups: {} },
  additionalProperties: false,
});

export interface LogItem {
  id: string;
  split: string;
  step: number;
  num_groups: number;
  num_trajectories: number;
  metrics: Record<string, number>;
  created_at: string;
}

export interface HistoryItem {
  id: string;
  step: number;
  key: string;
  metrics: Record<string, number>;
  created_at: string;
}
