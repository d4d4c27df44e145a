/** Bodies of the artifact store. */
import { object, string } from '../json-schema.ts';
import { entityField, modelNameField, projectField } from './models.ts';
import { compilePreview } from './validator.ts';

export interface ArtifactCreate {
  project: string;
  name: string;
  entity?: string | null;
  type?: string;
  metadata?: Record<string, unknown>;
}

export const validateArtifactCreate = compilePreview<ArtifactCreate>({
  type: 'object',
  required: ['project', 'name'],
  properties: {
    project: projectField,
    name: modelNameField,
    entity: entityField,
    type: string({ minLength: 1, maxLength: 64, pattern: '^[A-Za-z0-9._-]+$' }),
    metadata: object({ maxProperties: 1000 }),
  },
  additionalProperties: false,
});

export interface ArtifactFileItem {
  name: string;
  bytes: number;
  sha256: string;
}

export interface ArtifactResponse {
  id: string;
  entity: string;
  project: string;
  name: string;
  type: string;
  /** `open` or `committed`. */
  state: string;
  /** `v0`, `v1`, ...; null while open. */
  version: string | null;
  /** What training_data_url takes; null while open. */
  url: string | null;
  metadata: unknown;
  created_at: string;
  files: ArtifactFileItem[];
}
