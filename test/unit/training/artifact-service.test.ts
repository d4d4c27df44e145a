/** Artifacts between their store and their files: what makes a version, what is refused before it costs, and what goes. */
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { ArtifactRepository } from '../../../src/control/store/artifact-repository.ts';
import { FolderBlobStore } from '../../../src/control/store/blob-store.ts';
import { Database } from '../../../src/control/store/database.ts';
import { ArtifactService, type NewArtifact } from '../../../src/control/training/artifacts/artifact-service.ts';
import { Receiving } from '../../../src/control/training/receiving.ts';
import { StorageQuota } from '../../../src/control/training/storage-quota.ts';

const MAX_BYTES = 100;
const ANY: NewArtifact = { entity: null, project: 'p', name: 'n', type: 'dataset', metadata: {} };

let directory: string;
let database: Database;
let artifacts: ArtifactService;
let used: number;
let names = 0;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-artifact-service-'));
  database = await Database.open(directory);
  used = 0;
  artifacts = serviceWith(new ArtifactRepository(database.db));
});
afterEach(async () => {
  await database.close();
  rmSync(directory, { recursive: true, force: true });
});

function serviceWith(repository: ArtifactRepository): ArtifactService {
  return new ArtifactService({
    repository,
    blobs: new FolderBlobStore(join(directory, 'blobs')),
    quota: new StorageQuota(() => Promise.resolve(used), 1000),
    receiving: new Receiving(),
    maxBytes: MAX_BYTES,
    log: pino({ level: 'silent' }),
  });
}

const uploads = () => readdirSync(join(directory, 'blobs', 'uploads')).length;
const drafts = () => readdirSync(join(directory, 'blobs', 'drafts')).length;

async function* source(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text);
}

async function* unread(): AsyncGenerator<Uint8Array> {
  throw new Error('It was read.');
  yield Buffer.alloc(0);
}

async function begin(more: Partial<NewArtifact> = {}): Promise<string> {
  return (await artifacts.create('e', { ...ANY, ...more })).id;
}

async function version(files: Record<string, string>, more: Partial<NewArtifact> = {}): Promise<string | null> {
  const id = await begin(more);
  for (const [name, text] of Object.entries(files)) await artifacts.upload(id, 'e', name, source(text));
  return (await artifacts.commit(id, 'e')).version;
}

test('another type, metadata, name or content of a file is another version; the same again keeps no file twice', async () => {
  // Each differs in one thing from the one before.
  expect(await version({ 'train.jsonl': 'a' })).toBe('v0');
  expect(await version({ 'train.jsonl': 'a' }, { type: 'model' })).toBe('v1');
  const more = { type: 'model', metadata: { a: 1 } };
  expect(await version({ 'train.jsonl': 'a' }, more)).toBe('v2');
  expect(await version({ 'trajectories.jsonl': 'a' }, more)).toBe('v3');
  expect(await version({ 'trajectories.jsonl': 'b' }, more)).toBe('v4');
  expect(await version({ 'trajectories.jsonl': 'b', other: '' }, more)).toBe('v5');
  expect(uploads()).toBe(7);
  expect(await version({ other: '', 'trajectories.jsonl': 'b' }, more)).toBe('v5');
  expect(uploads()).toBe(7);
});

test('what will be refused is not read: files of what is committed, of a full entity, of bad names', async () => {
  const [open, committed] = [await begin(), await begin()];
  await artifacts.upload(committed, 'e', 'a', source('a'));
  await artifacts.commit(committed, 'e');
  await expect(artifacts.upload(committed, 'e', 'b', unread())).rejects.toMatchObject({ code: 'conflict' });
  await expect(artifacts.upload(open, 'e', '../b', unread())).rejects.toThrow('A file name has');
  await expect(artifacts.upload(open, 'f', 'b', unread())).rejects.toMatchObject({ code: 'not_found' });
  used = 1000;
  await expect(artifacts.upload(open, 'e', 'b', unread())).rejects.toMatchObject({ code: 'quota_exceeded' });
  expect(drafts()).toBe(0);
});

test('what is refused when its size is known, or when there are 64 files, is not kept', async () => {
  const id = await begin();
  used = 990;
  const large = artifacts.upload(id, 'e', 'b', source('x'.repeat(11)));
  await expect(large).rejects.toMatchObject({ code: 'quota_exceeded' });
  await artifacts.upload(id, 'e', 'b', source('x'.repeat(10)));
  used = 0;
  await expect(artifacts.upload(id, 'e', 'b', source('x'.repeat(MAX_BYTES + 1)))).rejects.toMatchObject({
    code: 'too_large',
  });
  for (let i = 1; i < 64; i++) await artifacts.upload(id, 'e', `f${i}`, source('x'));
  await expect(artifacts.upload(id, 'e', 'f64', source('x'))).rejects.toMatchObject({ code: 'conflict' });
  await artifacts.upload(id, 'e', 'f63', source('y'));
  expect([uploads(), drafts(), (await artifacts.get(id, 'e')).files.length]).toEqual([64, 0, 64]);
});

test('of one entity so many uploads are on their way at once; one more is refused unread, others have their own', async () => {
  const ids = [await begin(), (await artifacts.create('f', { ...ANY, name: 'theirs' })).id];
  let end: () => void = () => undefined;
  const held = new Promise<void>((resolve) => (end = resolve));
  const slow = async function* (): AsyncGenerator<Uint8Array> {
    await held;
    yield Buffer.from('slow');
  };
  const [id = '', theirs = ''] = ids;
  const under = Array.from({ length: 32 }, (_, i) => artifacts.upload(id, 'e', `f${i}`, slow()));
  await expect.poll(drafts).toBe(32);
  await expect(artifacts.upload(id, 'e', 'more', unread())).rejects.toMatchObject({ code: 'unavailable' });
  await artifacts.upload(theirs, 'f', 'a', source('a'));
  end();
  await Promise.all(under);
  await artifacts.upload(id, 'e', 'more', source('a'));
});

test('the metadata of an artifact have a size, and go with it', async () => {
  const metadata = (characters: number) => ({ a: 'x'.repeat(characters - '{"a":""}'.length) });
  await expect(begin({ metadata: metadata(65_537) })).rejects.toMatchObject({
    details: [{ loc: ['body', 'metadata'] }],
  });
  const id = await begin({ metadata: metadata(65_536) });
  await artifacts.delete(id, 'e');
  const row = await database.db.selectFrom('artifacts').select('metadata').where('id', '=', id).executeTakeFirst();
  expect(row?.metadata).toBe('{}');
});

test('an upload that ends when its artifact has been committed, or has gone, is refused and leaves nothing', async () => {
  for (const end of [(id: string) => artifacts.commit(id, 'e'), (id: string) => artifacts.delete(id, 'e')]) {
    const id = await begin({ name: `n${names++}` });
    await artifacts.upload(id, 'e', 'a', source('a'));
    const late = async function* (): AsyncGenerator<Uint8Array> {
      await end(id);
      yield Buffer.from('late');
    };
    await expect(artifacts.upload(id, 'e', 'b', late())).rejects.toMatchObject({ code: 'conflict' });
    // The file of the one that was committed.
    expect([uploads(), drafts()]).toEqual([1, 0]);
  }
});

test('training rows are those of train.jsonl or trajectories.jsonl', async () => {
  const read = async (files: Record<string, string>) => {
    const name = `n${names++}`;
    await version(files, { name });
    const data = await artifacts.openData('e', 'p', name, 0);
    if (data === null) return null;
    const pieces = [];
    for await (const piece of data) pieces.push(piece);
    return Buffer.concat(pieces).toString();
  };
  expect(await read({ 'other.jsonl': 'x', 'train.jsonl': 'a' })).toBe('a');
  expect(await read({ a: 'x', 'trajectories.jsonl': 'b' })).toBe('b');
  expect(await read({ 'other.jsonl': 'x' })).toBeNull();
  await version({ 'train.jsonl': 'a' });
  expect(await artifacts.openData('f', 'p', 'n', null)).toBeNull();
});

test('files go with their artifact: deleted, or left open for a day', async () => {
  const [deleted, abandoned, fresh] = [await begin(), await begin(), await begin()];
  for (const id of [deleted, abandoned, fresh]) await artifacts.upload(id, 'e', 'a', source('a'));
  await artifacts.delete(deleted, 'e');
  expect(uploads()).toBe(2);
  const old = new Date(Date.now() - 24 * 3600 * 1000 - 1000).toISOString();
  await database.db.updateTable('artifacts').set({ created_at: old }).where('id', '=', abandoned).execute();
  await artifacts.removeAbandoned();
  expect(uploads()).toBe(1);
  await expect(artifacts.get(abandoned, 'e')).rejects.toMatchObject({ code: 'not_found' });
  expect((await artifacts.get(fresh, 'e')).state).toBe('open');
});

test('a page says that there is another, and is refused from behind what is not the entity’s', async () => {
  const ids = [await begin(), await begin(), await begin()];
  const [first, second] = ids.map((id) => ({ id }));
  expect(await artifacts.page('e', null, 2)).toMatchObject({ rows: [first, second], hasMore: true });
  expect(await artifacts.page('e', ids[0] ?? '', 1)).toMatchObject({ rows: [second], hasMore: true });
  await expect(artifacts.page('f', ids[0] ?? '', 1)).rejects.toThrow('There is no such artifact.');
});

test('a file that the disk has lost is told apart from one that is replaced, or deleted, while it is opened', async () => {
  const repository = new ArtifactRepository(database.db);
  const service = serviceWith(repository);
  const id = await begin();
  const read = async () => text((await service.read(id, 'e', 'train.jsonl')).content);
  const opensAsBefore = async (change: () => Promise<unknown>) => {
    const before = await repository.findOwned(id, 'e');
    await change();
    vi.spyOn(repository, 'findOwned').mockResolvedValueOnce(before);
  };
  await artifacts.upload(id, 'e', 'train.jsonl', source('a'));
  expect(await read()).toBe('a');
  await opensAsBefore(() => artifacts.upload(id, 'e', 'train.jsonl', source('b')));
  expect(await read()).toBe('b');
  for (const name of readdirSync(join(directory, 'blobs', 'uploads')))
    rmSync(join(directory, 'blobs', 'uploads', name), { recursive: true });
  await expect(read()).rejects.toMatchObject({ code: 'file_lost', cause: { code: 'ENOENT' } });
  await opensAsBefore(() => artifacts.delete(id, 'e'));
  await expect(read()).rejects.toMatchObject({ code: 'not_found' });
});
