/** The names under which clients ask for a trained model, and what they mean. */
import { formatReference, parseReference } from '../reference.ts';

/** `step` null: the newest. */
export interface ModelName {
  entity: string;
  project: string;
  name: string;
  step: number | null;
}

/** `:step3`, or `:v3`: a version is a step. */
const STEP = /^(?:step|v)(\d{1,15})$/;
/** Entity, project, name and suffix with their separators. */
const MAX_MODEL_NAME_LENGTH = 512;

/**
 * `wandb-artifact:///entity/project/name[:step3|:v3|:latest]`, the same with two slashes, and without any scheme.
 * Null: no name of a trained model.
 */
export function parseModelName(text: string): ModelName | null {
  const reference = text.length > MAX_MODEL_NAME_LENGTH ? null : parseReference(text);
  if (reference === null) return null;
  const { alias, ...named } = reference;
  if (alias === 'latest') return { ...named, step: null };
  const digits = STEP.exec(alias)?.[1];
  return digits === undefined ? null : { ...named, step: Number(digits) };
}

export function formatModelName(model: ModelName): string {
  return formatReference(model, model.step === null ? null : `step${model.step}`);
}
