/** What is on the disk before an object is visible, who may read it, and what goes when. */
import { createHash } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { open, type FileHandle } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import {
  BlobTooLargeError,
  FolderBlobStore,
  folderBytes,
  removeUnnamed,
  type BlobArea,
} from '../../../src/control/store/blob-store.ts';

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

/** With one file, sealed. */
async function sealed(blobs: FolderBlobStore, area: BlobArea = 'inputs'): Promise<string> {
  const draft = await blobs.draft(area);
  await draft.write('content', Buffer.from('text'));
  await draft.seal();
  return draft.key;
}

test('a file is on the disk, whole and known by its digest, when its writer goes on; it may have its size and no more', async () => {
  const blobs = new FolderBlobStore(root);
  const draft = await blobs.draft('uploads');
  const synced = await watchSyncs();
  const pieces = [Buffer.from('one'), Buffer.from(''), Buffer.from('three')];
  const sha256 = createHash('sha256').update('onethree').digest('hex');
  expect(await draft.write('content', pieces, 8)).toEqual({ bytes: 8, sha256 });
  expect(synced).toEqual([statSync(join(draft.directory, 'content')).ino]);
  expect(readFileSync(join(draft.directory, 'content'), 'utf8')).toBe('onethree');
  await expect(draft.write('content', pieces, 7)).rejects.toThrow(BlobTooLargeError);
  await draft.write('more', Buffer.alloc(5));
  await draft.write('content', pieces);
  expect(await folderBytes(draft.directory)).toBe(13);
});

test('only their owner may read folders and files', async () => {
  const mask = process.umask(0);
  try {
    const below = join(root, 'blobs');
    const blobs = new FolderBlobStore(below);
    const key = await sealed(blobs, 'adapters');
    const draft = await blobs.draft('adapters');
    for (const path of [below, join(below, 'adapters'), join(below, 'drafts'), draft.directory, blobs.path(key)])
      expect((statSync(path).mode & 0o777).toString(8), path).toBe('700');
    expect((statSync(blobs.path(key, 'content')).mode & 0o777).toString(8)).toBe('600');
  } finally {
    process.umask(mask);
  }
});

test('keys and names lead nowhere else', async () => {
  const blobs = new FolderBlobStore(root);
  const draft = await blobs.draft('inputs');
  for (const key of ['', '..', 'inputs', 'inputs/..', `../${draft.key}`, `${draft.key}/..`, `${draft.key}\n`]) {
    expect(() => blobs.path(key), key).toThrow('is no key of an object');
    await expect(blobs.remove(key), key).rejects.toThrow('is no key of an object');
  }
  for (const name of ['', '.', '..', '../content', 'a/b', '-', 'a'.repeat(129)]) {
    expect(() => blobs.path(draft.key, name), name).toThrow('is no name of a file');
    await expect(draft.write(name, Buffer.from('x')), name).rejects.toThrow('is no name of a file');
  }
  expect(blobs.path(draft.key, 'a'.repeat(128))).toContain(draft.key);
});

test('a source that fails leaves no file open, and nothing once its draft is discarded, sealed or not', async () => {
  const blobs = new FolderBlobStore(root);
  const failing = function* (): Generator<Uint8Array> {
    yield Buffer.from('half');
    throw new Error('gone');
  };
  const draft = await blobs.draft('inputs');
  const open = () => readdirSync('/proc/self/fd').length;
  const before = open();
  for (let i = 0; i < 20; i++) await expect(draft.write('content', failing())).rejects.toThrow('gone');
  expect(open()).toBeLessThan(before + 10);
  await draft.discard();
  await draft.discard();
  const other = await blobs.draft('inputs');
  await other.write('content', Buffer.from('x'));
  await other.seal();
  await other.discard();
  expect([readdirSync(join(root, 'drafts')), readdirSync(join(root, 'inputs'))]).toEqual([[], []]);
});

test('a start removes drafts and what no row names, and leaves the rest', async () => {
  const blobs = new FolderBlobStore(root);
  const kept = [await sealed(blobs, 'adapters'), await sealed(blobs, 'uploads')];
  const needless = [await sealed(blobs, 'adapters'), await sealed(blobs, 'uploads'), await sealed(blobs, 'inputs')];
  const draft = await blobs.draft('inputs');
  await draft.write('content', Buffer.from('x'));
  expect(await blobs.sweep(new Set(kept))).toBe(4);
  for (const key of kept) expect(existsSync(blobs.path(key, 'content')), key).toBe(true);
  for (const key of needless) expect(existsSync(blobs.path(key)), key).toBe(false);
  expect(existsSync(draft.directory)).toBe(false);
});

test('one object that cannot be removed keeps no other, and tells the log', async () => {
  const blobs = new FolderBlobStore(root);
  const keys = [await sealed(blobs), await sealed(blobs)];
  const warn = vi.fn();
  const remove = async (key: string) => {
    if (key === keys[0]) throw new Error('busy');
    await blobs.remove(key);
  };
  await removeUnnamed({ remove }, keys, { warn });
  expect(keys.map((key) => existsSync(blobs.path(key)))).toEqual([true, false]);
  expect(warn).toHaveBeenCalledTimes(1);
});
