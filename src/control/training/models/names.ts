/** The names under which clients ask for a trained model, and what they mean. */

/** `step` null: the newest. */
export interface ModelName {
  entity: string;
  project: string;
  name: string;
  step: number | null;
}

const SCHEME = /^wandb-artifact:\/\/(?:\/)?/;
/** `:step3`, `:v3` (a version is a step) or `:latest`. */
const SUFFIX = /^(?:step|v)(\d{1,15})$/;
/** Entity, project, name and suffix with their separators. */
const MAX_MODEL_NAME_LENGTH = 512;

/**
 * `wandb-artifact:///entity/project/name[:step3|:v3|:latest]`, the same with two slashes, and without any scheme.
 * Null: no name of a trained model.
 */
export function parseModelName(text: string): ModelName | null {
  if (text.length > MAX_MODEL_NAME_LENGTH) return null;
  const parts = text.replace(SCHEME, '').split('/');
  const [entity = '', project = '', last = ''] = parts;
  if (parts.length !== 3 || entity === '' || project === '') return null;
  const at = last.indexOf(':');
  const name = at === -1 ? last : last.slice(0, at);
  if (name === '') return null;
  const suffix = at === -1 ? 'latest' : last.slice(at + 1);
  if (suffix === 'latest') return { entity, project, name, step: null };
  const digits = SUFFIX.exec(suffix)?.[1];
  return digits === undefined ? null : { entity, project, name, step: Number(digits) };
}

export function formatModelName({ entity, project, name, step }: ModelName): string {
  return `wandb-artifact:///${entity}/${project}/${name}${step === null ? '' : `:step${step}`}`;
}
