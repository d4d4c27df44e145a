import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';
import { setupCommand } from '../../src/control/setup-command.ts';

test('what is not built is built by set-up in a clone, and by npm where only what is published is there', () => {
  expect(setupCommand()).toBe('`npm run setup`');
  const installed = mkdtempSync(join(tmpdir(), 'tandem-installed-'));
  expect(setupCommand(pathToFileURL(`${installed}/`))).toMatch(
    /^`npm rebuild` .*`npm install-scripts approve tandem better-sqlite3`/,
  );
  rmSync(installed, { recursive: true });
  const { files } = JSON.parse(readFileSync('package.json', 'utf8')) as { files: string[] };
  expect(files.filter((file) => 'scripts/setup.mjs'.startsWith(file))).toEqual([]);
});
