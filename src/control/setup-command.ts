import { existsSync } from 'node:fs';

/**
 * What builds the native parts: set-up in a clone; npm itself where it installed the package beside its dependencies,
 * whose scripts it may have left out. From version 12 on `npm rebuild` leaves them out too, and says that all went well,
 * until they are approved.
 */
export function setupCommand(root = new URL('../../', import.meta.url)): string {
  if (existsSync(new URL('scripts/setup.mjs', root))) return '`npm run setup`';
  return (
    '`npm rebuild` in the folder that Tandem was installed in ' +
    '(npm 12 and newer: `npm install-scripts approve tandem better-sqlite3` first)'
  );
}
