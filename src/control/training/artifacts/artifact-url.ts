/** `wandb-artifact:///entity/project/name:v3`, as clients write it. */
export interface ArtifactName {
  entity: string;
  project: string;
  name: string;
  /** null: the newest. */
  version: number | null;
}

const PREFIX = /^wandb-artifact:\/\/\/?/;

/** Null where the text is no artifact's URL. */
export function parseArtifactUrl(text: string): ArtifactName | null {
  const prefix = PREFIX.exec(text);
  if (prefix === null) return null;
  const [entity = '', project = '', last = '', ...more] = text.slice(prefix[0].length).split('/');
  const at = last.indexOf(':');
  const name = at === -1 ? last : last.slice(0, at);
  const alias = at === -1 ? 'latest' : last.slice(at + 1);
  if (more.length > 0 || entity === '' || project === '' || name === '') return null;
  if (alias === 'latest') return { entity, project, name, version: null };
  const digits = /^v(\d{1,9})$/.exec(alias)?.[1];
  return digits === undefined ? null : { entity, project, name, version: Number(digits) };
}

export function formatArtifactUrl(entity: string, project: string, name: string, version: number): string {
  return `wandb-artifact:///${entity}/${project}/${name}:v${version}`;
}
