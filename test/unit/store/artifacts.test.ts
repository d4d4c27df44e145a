/** What the store says of artifacts: whose they are, in which order they come, and what a commit makes of them. */
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { TransitionError } from '../../../src/control/lifecycle.ts';
import { ArtifactRepository } from '../../../src/control/store/artifact-repository.ts';
import { Database } from '../../../src/control/store/database.ts';

const EARLY = '2026-01-01T00:00:00.000Z';
const LATE = '2026-02-01T00:00:00.000Z';
const MAX_FILES = 2;

let directory: string;
let database: Database;
let artifacts: ArtifactRepository;
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-artifacts-'));
  database = await Database.open(directory);
  artifacts = new ArtifactRepository(database.db);
});
afterAll(async () => {
  await database?.close();
  rmSync(directory, { recursive: true, force: true });
});

interface Named {
  entity: string;
  project: string;
  name: string;
}

/** Each test has entities of its own. */
const named = (): Named => ({ entity: randomUUID(), project: 'p', name: 'n' });

async function begin(what: Named, createdAt = EARLY, maxOpen = 100): Promise<string> {
  const id = randomUUID();
  expect(await artifacts.insert({ ...what, id, type: 'dataset', metadata: {}, createdAt }, maxOpen)).toBe(true);
  return id;
}

const put = (id: string, name: string, blobKey: string) =>
  artifacts.putFile(id, { name, blobKey, bytes: 1, sha256: blobKey }, MAX_FILES);

/** Of one file; its text stands for the digest of all. */
async function commit(what: Named, text: string, id?: string): Promise<string> {
  const own = id ?? (await begin(what));
  await put(own, 'train.jsonl', `uploads/${text}`);
  const artifact = await artifacts.findOwned(own, what.entity);
  const committed = artifact && (await artifacts.commit(artifact, text));
  return committed?.id ?? '';
}

const versionOf = async (id: string, { entity }: Named) => (await artifacts.findOwned(id, entity))?.version;

test('a page has as many of the entity’s own as were asked for, oldest first, from behind any that it had', async () => {
  const [mine, theirs] = [named(), named()];
  const first = await begin(mine);
  const deleted = await begin(mine);
  const foreign = await begin(theirs);
  const [second, third] = [await begin(mine), await begin(mine)];
  await artifacts.remove(deleted, mine.entity);
  const page = async (after: string | null, limit = 100) =>
    (await artifacts.page(mine.entity, after, limit))?.rows.map(({ id }) => id);
  expect(await page(null)).toEqual([first, second, third]);
  expect(await page(null, 2)).toEqual([first, second]);
  expect(await page(first, 1)).toEqual([second]);
  expect(await page(deleted)).toEqual([second, third]);
  expect(await page(third)).toEqual([]);
  for (const unknown of [foreign, randomUUID()]) expect(await page(unknown)).toBeUndefined();
});

test('a version is found under its own entity, project and name; without a number the newest that is there', async () => {
  const mine = named();
  const others = [
    { ...mine, entity: randomUUID() },
    { ...mine, project: 'q' },
    { ...mine, name: 'm' },
  ];
  const [v0, v1] = [await commit(mine, 'a'), await commit(mine, 'b')];
  for (const other of others) for (const text of ['c', 'd', 'e']) await commit(other, text);
  await begin(mine);
  const find = async (version: number | null, { entity, project, name } = mine) =>
    (await artifacts.findVersion(entity, project, name, version))?.id;
  expect([await find(0), await find(1), await find(2), await find(null)]).toEqual([v0, v1, undefined, v1]);
  expect(await find(null, { ...mine, name: 'never' })).toBeUndefined();
  await artifacts.remove(v1, mine.entity);
  expect([await find(0), await find(1), await find(null)]).toEqual([v0, undefined, v0]);
});

test('versions of a name count from 0, whatever lies under other names', async () => {
  const mine = named();
  for (const other of [
    { ...mine, entity: randomUUID() },
    { ...mine, project: 'q' },
    { ...mine, name: 'm' },
  ]) {
    for (const text of ['a', 'b']) await commit(other, text);
  }
  expect(await versionOf(await commit(mine, 'b'), mine)).toBe(0);
  expect(await versionOf(await commit(mine, 'a'), mine)).toBe(1);
});

test('content of the newest version is that version; of an older or a deleted one, a new version', async () => {
  const mine = named();
  const versions = [await commit(mine, 'a'), await commit(mine, 'b'), await commit(mine, 'a')];
  expect(new Set(versions).size).toBe(3);
  expect(await commit(mine, 'a')).toBe(versions[2]);
  await artifacts.remove(versions[2] ?? '', mine.entity);
  const again = await commit(mine, 'a');
  expect(await versionOf(again, mine)).toBe(3);
});

test('what a commit gave is told again: itself, or what had its content, under the same name and still there', async () => {
  const mine = named();
  const others = [
    { ...mine, entity: randomUUID() },
    { ...mine, project: 'q' },
    { ...mine, name: 'm' },
  ];
  const told = async (id: string, { entity } = mine) => (await artifacts.committed(id, entity))?.id;
  const [open, same] = [await begin(mine), await begin(mine)];
  const [v0, v1, v2] = [await commit(mine, 'a'), await commit(mine, 'b'), await commit(mine, 'a')];
  expect(await commit(mine, 'a', same)).toBe(v2);
  for (const other of others) for (const text of ['x', 'y', 'z', 'a']) await commit(other, text);
  expect([await told(v0), await told(v1), await told(same), await told(open)]).toEqual([v0, v1, v2, undefined]);
  expect(await told(v0, named())).toBeUndefined();
  // It gave way to v2 and has gone already: that somebody deletes it changes nothing, nor do later versions of the same content.
  await artifacts.remove(same, mine.entity);
  for (const text of ['b', 'a']) await commit(mine, text);
  expect(await told(same)).toBe(v2);
  // One that is deleted gave itself, and that has gone.
  await artifacts.remove(v0, mine.entity);
  expect(await told(v0)).toBeUndefined();
  await artifacts.remove(v2, mine.entity);
  expect(await told(same)).toBeUndefined();
});

test('an open artifact takes files, a bounded number of names, each one’s last; one that is committed takes none', async () => {
  const mine = named();
  const id = await begin(mine);
  expect([await put(id, 'b', 'uploads/1'), await put(id, 'a', 'uploads/2')]).toEqual([null, null]);
  expect(await put(id, 'c', 'uploads/3')).toBe('full');
  expect(await put(id, 'b', 'uploads/4')).toBe('uploads/1');
  const files = async () =>
    (await artifacts.findOwned(id, mine.entity))?.files.map(({ name, blobKey }) => [name, blobKey]);
  expect(await files()).toEqual([
    ['a', 'uploads/2'],
    ['b', 'uploads/4'],
  ]);
  const artifact = await artifacts.findOwned(id, mine.entity);
  if (artifact) await artifacts.commit(artifact, 'digest');
  await expect(put(id, 'b', 'uploads/5')).rejects.toThrow(TransitionError);
  expect(await files()).toEqual([
    ['a', 'uploads/2'],
    ['b', 'uploads/4'],
  ]);
});

test('others neither see an artifact nor delete it', async () => {
  const mine = named();
  const id = await begin(mine);
  await put(id, 'a', 'uploads/1');
  expect(await artifacts.findOwned(id, randomUUID())).toBeNull();
  expect(await artifacts.remove(id, randomUUID())).toBeNull();
  expect(await artifacts.remove(id, mine.entity)).toEqual(['uploads/1']);
});

test('only open artifacts from before are abandoned', async () => {
  const mine = named();
  const [old, fresh] = [await begin(mine), await begin(mine, LATE)];
  const committed = await commit(mine, 'a');
  const abandoned = (await artifacts.abandoned(LATE)).map(({ id }) => id);
  expect(abandoned).toContain(old);
  for (const kept of [fresh, committed]) expect(abandoned).not.toContain(kept);
});

test('old rows that only answer repeated requests are forgotten; those of versions stay, so that none is given twice', async () => {
  const mine = named();
  const [dropped, fresh, open] = [await begin(mine), await begin(mine, LATE), await begin(mine)];
  const [v0, v1] = [await commit(mine, 'a'), await commit(mine, 'b')];
  for (const id of [dropped, fresh, v1]) await artifacts.remove(id, mine.entity);
  await artifacts.forgetDeleted(LATE);
  const kept = async (id: string) => (await artifacts.findOwned(id, mine.entity)) !== null;
  expect([await kept(dropped), await kept(fresh), await kept(open), await kept(v0)]).toEqual([false, true, true, true]);
  expect(await versionOf(await commit(mine, 'c'), mine)).toBe(2);
});

test('each entity may have so many open at once; committed and deleted ones are not among them', async () => {
  const [mine, theirs] = [named(), named()];
  await begin(theirs);
  await commit(mine, 'a');
  await artifacts.remove(await begin(mine), mine.entity);
  await begin(mine, EARLY, 1);
  const refused = { ...mine, id: randomUUID(), type: 'dataset', metadata: {}, createdAt: EARLY };
  expect(await artifacts.insert(refused, 1)).toBe(false);
});
