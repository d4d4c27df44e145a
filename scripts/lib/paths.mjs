import path from 'node:path';

/** The repository's (or the installed package's) top folder. */
export const root = path.resolve(import.meta.dirname, '../..');

export const nativeBuild = path.join(root, 'native-build');
export const addon = path.join(nativeBuild, 'Release', 'tandem.node');
export const dist = path.join(root, 'dist');

export function fromRoot(...parts) {
  return path.join(root, ...parts);
}
