/** What is on the disk before an object is visible. */
import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { open, type FileHandle } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { FolderBlobStore } from '../../../src/control/store/blob-store.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'tandem-blobs-'));
});
afterEach(() => {
  vi.restoreAllMocks();
  rmSync(root, { recursive: true, force: true });
});

/** Inodes in the order in which they reach the disk. */
async function watchSyncs(): Promise<number[]> {
  const any = await open(root);
  const handles = Object.getPrototypeOf(any) as FileHandle;
  await any.close();
  const synced: number[] = [];
  const sync = Reflect.get(handles, 'sync');
  vi.spyOn(handles, 'sync').mockImplementation(async function (this: FileHandle) {
    await sync.call(this);
    synced.push((await this.stat()).ino);
  });
  return synced;
}

test('files and folders of any depth reach the disk before the object is visible, each folder after what is in it', async () => {
  const blobs = new FolderBlobStore(root);
  const draft = await blobs.draft('inputs');
  const deep = join(draft.directory, 'step-1', 'more');
  mkdirSync(deep, { recursive: true });
  const names = ['content', 'step-1/weights', 'step-1/more/config'];
  for (const name of names) writeFileSync(join(draft.directory, name), name);
  const inode = (name: string) => statSync(join(draft.directory, name)).ino;
  const [content, weights, config] = names.map(inode);
  const [more, step, top] = ['step-1/more', 'step-1', '.'].map(inode);
  const area = statSync(join(root, 'inputs')).ino;
  const synced = await watchSyncs();
  await draft.seal();
  expect([...synced].sort()).toEqual([content, weights, config, more, step, top, area].sort());
  const order = [config, more, step, top, area].map((each) => synced.indexOf(each ?? 0));
  expect(order).toEqual([...order].sort((a, b) => a - b));
  expect(synced.indexOf(weights ?? 0)).toBeLessThan(synced.indexOf(step ?? 0));
  expect(readdirSync(blobs.path(draft.key), { recursive: true }).sort()).toEqual(
    [...names, 'step-1', 'step-1/more'].sort(),
  );
});
