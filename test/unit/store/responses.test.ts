/** Stored responses: whose they are, how many there may be, how far a conversation is followed. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { sql } from 'kysely';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { StoredResponse } from '../../../src/control/stored-responses.ts';
import { Database } from '../../../src/control/store/database.ts';
import { ResponseRepository, type ResponseBounds } from '../../../src/control/store/response-repository.ts';
import { seededRandom } from '../../../src/control/training/random.ts';

let directory: string;
let database: Database;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-responses-'));
  database = await Database.open(directory);
});
afterEach(async () => {
  await database.close();
  rmSync(directory, { recursive: true, force: true });
});

const LARGE = 2 ** 30;
const ANY = () => undefined;

function repository(bounds: Partial<ResponseBounds> = {}): ResponseRepository {
  return new ResponseRepository(database, { maxCount: 1000, maxBytes: LARGE, ...bounds });
}

/** Of `bytes` bytes. */
function response(id: string, previousId: string | null = null, bytes = 16): StoredResponse {
  return { id, previousId, head: '{}', output: '[]', input: JSON.stringify('x'.repeat(bytes - 6)) };
}

async function ids(entity = 'one'): Promise<string[]> {
  const rows = database.db.selectFrom('responses').select('id').where('entity', '=', entity).orderBy('sequence');
  return (await rows.execute()).map(({ id }) => id);
}

/** As kept by the triggers, and by the rows themselves. */
async function totals(entity: string): Promise<[unknown, unknown]> {
  const kept = await database.db
    .selectFrom('response_totals')
    .select(['count', 'bytes'])
    .where('entity', '=', entity)
    .executeTakeFirst();
  const { rows } = await sql`select count(*) count, coalesce(sum(bytes), 0) bytes from responses
    where entity = ${entity}`.execute(database.db);
  return [kept ?? { count: 0, bytes: 0 }, rows[0]];
}

test('what was stored is there, for its entity alone, until it is deleted', async () => {
  const store = repository();
  const stored = { id: 'a', previousId: null, head: '{"é":1}', output: '[1]', input: '[2]' };
  expect(await store.insert('one', stored)).toBe(true);
  expect(await store.find('one', 'a', ANY)).toEqual(stored);
  for (const found of [await store.find('two', 'a', ANY), await store.chain('two', 'a', ANY)]) expect(found).toBeNull();
  expect(await store.outputs('two', ['a'], ANY)).toEqual(new Map());
  expect(await store.outputs('one', ['b', 'a'], ANY)).toEqual(new Map([['a', '[1]']]));
  expect(await store.delete('two', 'a')).toBe(false);
  expect(await store.delete('one', 'a')).toBe(true);
  expect(await store.delete('one', 'a')).toBe(false);
  expect(await store.find('one', 'a', ANY)).toBeNull();
});

test('it is there after a restart', async () => {
  await repository().insert('one', response('a'));
  await database.close();
  database = await Database.open(directory);
  expect(await repository().find('one', 'a', ANY)).toEqual(response('a'));
});

test('one of the same id gives way, and another entity may have it', async () => {
  const store = repository();
  await store.insert('one', response('a', null, 20));
  await store.insert('two', response('a', null, 30));
  await store.insert('one', response('a', 'z', 40));
  expect(await store.find('one', 'a', ANY)).toEqual(response('a', 'z', 40));
  expect(await totals('one')).toEqual([
    { count: 1, bytes: 40 },
    { count: 1, bytes: 40 },
  ]);
});

test('the oldest leave where there are too many, those of other entities stay', async () => {
  const store = repository({ maxCount: 3 });
  await store.insert('two', response('x'));
  for (const id of ['a', 'b', 'c', 'd', 'e']) await store.insert('one', response(id));
  expect(await ids()).toEqual(['c', 'd', 'e']);
  expect(await ids('two')).toEqual(['x']);
});

test('the oldest leave where they take too much, and one that is too large alone is not taken', async () => {
  const store = repository({ maxBytes: 100 });
  for (const id of ['a', 'b', 'c']) await store.insert('one', response(id, null, 30));
  expect(await store.insert('one', response('d', null, 50))).toBe(true);
  expect(await ids()).toEqual(['c', 'd']);
  expect(await store.insert('one', response('e', null, 101))).toBe(false);
  expect(await ids()).toEqual(['c', 'd']);
  expect(await store.insert('one', response('f', null, 100))).toBe(true);
  expect(await ids()).toEqual(['f']);
});

test('a bound that was lowered is kept with the next response, however many are too many', async () => {
  const store = repository();
  for (let at = 0; at < 250; at++) await store.insert('one', response(`r${at}`));
  await repository({ maxCount: 2 }).insert('one', response('last'));
  expect(await ids()).toEqual(['r249', 'last']);
});

test('none are kept where none may be', async () => {
  const store = repository({ maxCount: 0 });
  expect(store.keeps).toBe(false);
  expect(await store.insert('one', response('a'))).toBe(false);
});

test('the sums agree with the rows after any order of writes', async () => {
  const random = seededRandom('responses');
  const store = repository({ maxCount: 8, maxBytes: 300 });
  for (let round = 0; round < 150; round++) {
    const entity = random() < 0.5 ? 'one' : 'two';
    const id = `r${Math.floor(random() * 20)}`;
    if (random() < 0.7) await store.insert(entity, response(id, null, 10 + Math.floor(random() * 90)));
    else await store.delete(entity, id);
    const [kept, counted] = await totals(entity);
    expect(kept).toEqual(counted);
    expect(kept).toSatisfy(({ count, bytes }: { count: number; bytes: number }) => count <= 8 && bytes <= 300);
  }
});

test('a conversation is followed to its beginning, and says what is missing', async () => {
  const store = repository();
  for (const [id, previous] of [
    ['a', null],
    ['b', 'a'],
    ['c', 'b'],
    ['other', 'a'],
  ] as const) {
    await store.insert('one', { ...response(id, previous), input: `["${id}"]` });
  }
  const chain = await store.chain('one', 'c', ANY);
  expect(chain).toMatchObject({ missing: null, isCut: false });
  expect(chain?.links.map(({ input }) => input)).toEqual(['["a"]', '["b"]', '["c"]']);
  await store.delete('one', 'a');
  expect(await store.chain('one', 'c', ANY)).toMatchObject({ missing: 'a', isCut: false });
  expect(await store.chain('one', 'a', ANY)).toBeNull();
});

test('what is read is announced before, and a conversation that goes in a circle is cut', async () => {
  const store = repository({ maxCount: 5000 });
  for (let at = 0; at < 5; at++) await store.insert('one', response(`r${at}`, at === 0 ? null : `r${at - 1}`, 100));
  expect(await store.chain('one', 'r4', ANY)).toMatchObject({ isCut: false });
  const asked: number[] = [];
  const refuse = (bytes: number) => {
    asked.push(bytes);
    throw new Error('too much');
  };
  await expect(store.chain('one', 'r4', refuse)).rejects.toThrow('too much');
  await expect(store.find('one', 'r4', refuse)).rejects.toThrow('too much');
  expect(asked).toEqual([500, 100]);
  await store.insert('one', response('circle', 'circle'));
  const circle = await store.chain('one', 'circle', ANY);
  expect(circle?.isCut).toBe(true);
  expect(circle?.links.length).toBeLessThan(1100);
});

test('outputs are read in batches, each announced before', async () => {
  const store = repository();
  const wanted = Array.from({ length: 230 }, (_, at) => `r${at}`);
  for (const id of wanted) await store.insert('one', response(id));
  expect((await store.outputs('one', [...wanted, 'nothing'], ANY)).size).toBe(230);
  const asked: number[] = [];
  await store.outputs('one', wanted, (bytes) => asked.push(bytes));
  expect(asked).toEqual([200, 200, 60]);
});

test('what is about to be read is announced in bytes, not in characters', async () => {
  const store = repository();
  const output = '["日本語"]';
  await store.insert('one', { ...response('r'), output });
  const asked: number[] = [];
  await store.outputs('one', ['r'], (bytes) => asked.push(bytes));
  expect(asked).toEqual([Buffer.byteLength(output)]);
});
