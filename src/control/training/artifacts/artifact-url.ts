/** `wandb-artifact:///entity/project/name:v3`, as clients write it. */
import { formatReference, hasScheme, parseReference } from '../reference.ts';

export interface ArtifactName {
  entity: string;
  project: string;
  name: string;
  /** null: the newest. */
  version: number | null;
}

/** Null where the text is no artifact's URL. */
export function parseArtifactUrl(text: string): ArtifactName | null {
  const reference = hasScheme(text) ? parseReference(text) : null;
  if (reference === null) return null;
  const { alias, ...named } = reference;
  if (alias === 'latest') return { ...named, version: null };
  const digits = /^v(\d{1,9})$/.exec(alias)?.[1];
  return digits === undefined ? null : { ...named, version: Number(digits) };
}

export function formatArtifactUrl(entity: string, project: string, name: string, version: number): string {
  return formatReference({ entity, project, name }, `v${version}`);
}
