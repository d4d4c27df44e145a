/** The data directory itself: made with its parents, for its owner alone. */
import { mkdirSync, statSync } from 'node:fs';
import { dirname, resolve } from 'node:path';

/** Nothing where it is there. Throws a sentence that names it. */
export function makeDataDir(dataDir: string): void {
  try {
    makeFolder(resolve(dataDir));
  } catch (error) {
    throw new Error(`The data directory ${dataDir} cannot be made: ${(error as Error).message}`);
  }
}

/** Not by `recursive`, which never returns where a file system has no place for folders (/proc). */
function makeFolder(path: string): void {
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return;
  if (dirname(path) !== path) makeFolder(dirname(path));
  mkdirSync(path, { mode: 0o700 });
}
