/** docs/threats.md names tests: each file exists and has a test of that name. */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { read } from './sources.ts';

const ROOT = fileURLToPath(new URL('../../../', import.meta.url));
/** A file, and the names behind it up to the next file. */
const REFERENCE = /`(test\/[^`]+)`((?:[ ,]*"[^"]+")*)/g;

function references(row: string): { file: string; names: string[] }[] {
  return [...row.matchAll(REFERENCE)].map(([, file = '', names = '']) => ({
    file,
    names: [...names.matchAll(/"([^"]+)"/g)].map(([, name = '']) => name),
  }));
}

it('every attack of docs/threats.md has a test that exists', () => {
  const rows = read('docs/threats.md')
    .split('\n')
    .filter((line) => line.startsWith('| ') && !line.startsWith('| Attack'));
  expect(rows.length).toBeGreaterThan(25);
  for (const row of rows) {
    const found = references(row);
    expect(found.length, row).toBeGreaterThan(0);
    // Nothing in quotes that is not read as a name.
    expect(found.flatMap(({ names }) => names).length, row).toBe((row.split('|').at(2)?.match(/"/g) ?? []).length / 2);
    for (const { file, names } of found) {
      expect(existsSync(ROOT + file), file).toBe(true);
      const text = read(file);
      for (const name of names) expect(text.includes(name), `${file}: ${name}`).toBe(true);
    }
  }
});
