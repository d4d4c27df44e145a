/** Ids of models, jobs, runs, logs and artifacts. A UUID may come in capitals and without its hyphens, in bodies as in paths. */
export const UUID_PATTERN = '^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$';

const UUID = new RegExp(UUID_PATTERN);

/** As ids are stored; what is no UUID stays as it is. */
export function canonicalUuid(text: string): string {
  if (!UUID.test(text)) return text;
  const digits = text.toLowerCase().replaceAll('-', '');
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}
