import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { link } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { keepReference, keptReference } from '../../../src/control/training/jobs/kept-references.ts';

const folder = mkdtempSync(join(tmpdir(), 'tandem-kept-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const noLinks = () => Promise.reject(Object.assign(new Error('not permitted'), { code: 'EPERM' }));

test.each([
  ['links', link, 2, { linked: 9, copied: 0 }],
  ['copies, where the file system has no links', noLinks, 1, { linked: 0, copied: 9 }],
])('the files stay as %s when the step goes', async (name, linkFile, links, bytes) => {
  const [from, draft] = [join(folder, `${name}-step`), join(folder, `${name}-job`)];
  for (const each of [from, draft]) mkdirSync(each);
  writeFileSync(join(from, 'adapter_config.json'), '{}');
  writeFileSync(join(from, 'adapter_model.safetensors'), 'weights');
  const checkpoint = { step: 3, adapter: { version: 'digest.of-this-step', directory: from } };
  expect(await keepReference({ directory: draft }, checkpoint, linkFile)).toEqual(bytes);
  expect(statSync(join(from, 'adapter_config.json')).nlink).toBe(links);
  rmSync(from, { recursive: true });
  const kept = await keptReference(draft, 3);
  expect(kept?.version).toBe('digest');
  expect(readFileSync(join(kept?.directory ?? '', 'adapter_model.safetensors'), 'utf8')).toBe('weights');
  expect(await keptReference(draft, 2)).toBeNull();
  expect(await keepReference({ directory: draft }, { ...checkpoint, step: 4 }, linkFile)).toBeNull();
});
