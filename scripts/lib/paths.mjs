import path from 'node:path';
import { fileURLToPath } from 'node:url';

/**
 * The repository's (or the installed package's) top folder. Not by `import.meta.dirname`, which a Node.js that is too old lacks: it is to read that
 * it is.
 */
export const root = path.resolve(fileURLToPath(import.meta.url), '../../..');

export const nativeBuild = path.join(root, 'native-build');
export const addon = path.join(nativeBuild, 'Release', 'tandem.node');
export const dist = path.join(root, 'dist');

export function fromRoot(...parts) {
  return path.join(root, ...parts);
}
