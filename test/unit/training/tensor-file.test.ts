/** Reading what training wrote. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { readWhole } from '../../../src/control/training/tensor-file.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tandem-tensors-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

test.each([1, 7, 999, 1000, 1001, undefined])('a file is read whole, %s bytes at once', async (readBytes) => {
  const path = join(folder, 'file');
  const bytes = Buffer.from(Array.from({ length: 1000 }, (_, at) => at % 251));
  writeFileSync(path, bytes);
  expect(bytes.equals(await readWhole(path, readBytes))).toBe(true);
  writeFileSync(path, '');
  expect(await readWhole(path, readBytes)).toHaveLength(0);
});

test('a missing file is told as such', async () => {
  await expect(readWhole(join(folder, 'missing'))).rejects.toMatchObject({ code: 'ENOENT' });
});
