/** Pages held for peers: who gives way to whom. */
import { expect, it } from 'vitest';
import { Holds } from '../../../src/control/scheduler/holds.ts';
import { IntBuffer } from '../../../src/control/scheduler/int-buffer.ts';
import { PagePool } from '../../../src/control/scheduler/pages.ts';

const PAGES = 12;

function start() {
  const pool = new PagePool(64);
  const holds = new Holds(pool, { maxPages: PAGES, holdMs: 1000, now: () => 0 });
  const add = (tenant: string, name: number, count: number) => {
    const pages = new IntBuffer(count);
    pool.allocate(count, pages);
    const scope = { tenant, adapterVersion: '', cacheSalt: null };
    const held = holds.add(pages.view(), scope, Int32Array.of(name));
    // Its sequence has ended.
    pool.release(pages.view());
    return held;
  };
  /** Names, the oldest first. */
  const held = () => {
    const names: (number | undefined)[] = [];
    holds.find(({ tokens }) => names.push(tokens[0]) < 0);
    return names;
  };
  return { pool, holds, add, held };
}

it('the flood of one tenant takes nothing that is held for another', () => {
  const { pool, holds, add, held } = start();
  add('quiet', 1, 3);
  for (let name = 2; name < 20; name++) expect(add('flood', name, 4)).toBe(true);
  expect(held()).toEqual([1, 18, 19]);
  // Who comes late has room at the cost of who holds most.
  add('late', 20, 4);
  expect(held()).toEqual([1, 19, 20]);
  while (holds.releaseOldest());
  expect([holds.pages, pool.used]).toEqual([0, 0]);
});

it('where no tenant holds more than another, the oldest gives way; of one tenant it always does', () => {
  const { holds, add, held } = start();
  for (const [name, tenant] of ['a', 'b', 'c'].entries()) add(tenant, name, 4);
  add('d', 3, 4);
  expect(held()).toEqual([1, 2, 3]);
  expect(add('b', 4, 4)).toBe(true);
  expect(held()).toEqual([2, 3, 4]);
  while (holds.releaseOldest());
  for (let name = 5; name < 7; name++) expect(add('b', name, PAGES)).toBe(true);
  expect(held()).toEqual([6]);
  expect(add('b', 7, PAGES + 1)).toBe(false);
  expect(holds.pages).toBe(PAGES);
});

it('a long prompt of one tenant takes nothing that is held for another, and nothing of its own for nothing', () => {
  const { pool, holds, add, held } = start();
  add('quiet', 1, 3);
  add('long', 2, 2);
  expect(add('long', 3, 10)).toBe(false);
  expect(held()).toEqual([1, 2]);
  // What is left beside the others it may have, at the cost of its own.
  expect(add('long', 4, 9)).toBe(true);
  expect(held()).toEqual([1, 4]);
  // Where each would hold as much the older gives way.
  expect(add('late', 5, 9)).toBe(true);
  expect([held(), holds.pages, pool.used]).toEqual([[1, 5], 12, 12]);
});
