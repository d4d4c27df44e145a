/** `wandb-artifact:///entity/project/name:alias`: how clients name trained models and artifacts. */
export interface Reference {
  entity: string;
  project: string;
  name: string;
  /** What stands behind the colon; `latest` where there is none. */
  alias: string;
}

const SCHEME = /^wandb-artifact:\/\/\/?/;

/** With two slashes or three, or without the scheme; null: it has not these parts. */
export function parseReference(text: string): Reference | null {
  const parts = text.replace(SCHEME, '').split('/');
  const [entity = '', project = '', last = ''] = parts;
  const at = last.indexOf(':');
  const name = at === -1 ? last : last.slice(0, at);
  if (parts.length !== 3 || entity === '' || project === '' || name === '') return null;
  return { entity, project, name, alias: at === -1 ? 'latest' : last.slice(at + 1) };
}

export function hasScheme(text: string): boolean {
  return SCHEME.test(text);
}

/** `alias` null: none is written. */
export function formatReference({ entity, project, name }: Omit<Reference, 'alias'>, alias: string | null): string {
  return `wandb-artifact:///${entity}/${project}/${name}${alias === null ? '' : `:${alias}`}`;
}
