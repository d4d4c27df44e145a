import { describe, expect, it } from 'vitest';
import { BlockHasher, type CacheScope } from '../../../src/control/scheduler/block-hash.ts';
import { IntBuffer } from '../../../src/control/scheduler/int-buffer.ts';
import { PagePool } from '../../../src/control/scheduler/pages.ts';
import { PrefixCache } from '../../../src/control/scheduler/prefix-cache.ts';
import { random } from './drive.ts';

class Fixture {
  nowMs = 1_000_000;
  readonly cache: PrefixCache;
  readonly pool: PagePool;

  constructor(pages: number) {
    this.cache = new PrefixCache(pages, () => this.nowMs);
    this.pool = new PagePool(pages, this.cache);
  }

  /** A sequence of this tenant that computed the blocks `name`0, `name`1, ... and has ended; '' stores nothing. */
  run(tenant: string, name: string, count: number, force = false): boolean {
    const pages = new IntBuffer(1);
    if (!this.pool.allocate(count, pages, tenant, force)) return false;
    if (name) pages.view().forEach((page, index) => this.cache.store(page, `${tenant}-${name}${index}`, tenant));
    this.pool.release(pages.view());
    this.check();
    return true;
  }

  /** How many blocks of the chain are left. */
  left(tenant: string, name: string, count = 100): number {
    const keys = Array.from({ length: count }, (_, index) => `${tenant}-${name}${index}`);
    return this.cache.find(keys, count).length;
  }

  check(): void {
    this.pool.checkIntegrity();
    this.cache.checkIntegrity((page) => this.pool.readers(page) > 0);
  }
}

describe('PrefixCache', () => {
  it('keeps stored pages after their last reader and gives them to those who share them', () => {
    const fixture = new Fixture(8);
    fixture.run('a', 'x', 3);
    expect([fixture.pool.free, fixture.pool.used, fixture.cache.kept]).toEqual([8, 0, 3]);
    const found = fixture.cache.find(['a-x0', 'a-x1', 'a-other'], 3);
    expect(found).toHaveLength(2);
    for (const page of found) fixture.pool.share(page);
    expect([fixture.pool.free, fixture.pool.used, fixture.cache.kept]).toEqual([6, 2, 1]);
    fixture.pool.release(Int32Array.from(found));
    fixture.check();
    expect(fixture.cache.kept).toBe(3);
  });

  it('finds no further than the limit and the first missing block', () => {
    const fixture = new Fixture(8);
    fixture.run('a', 'x', 3);
    expect(fixture.cache.find(['a-x0', 'a-x1', 'a-x2'], 2)).toHaveLength(2);
    expect(fixture.cache.find(['a-y', 'a-x1'], 2)).toEqual([]);
  });

  it('gives up the longest unused sequence first, and of a sequence its tail', () => {
    const fixture = new Fixture(10);
    fixture.run('a', 'old', 4);
    fixture.run('a', 'new', 4);
    fixture.run('a', '', 4);
    expect([fixture.left('a', 'old'), fixture.left('a', 'new')]).toEqual([2, 4]);
    // A hit makes the old one the younger one.
    const found = fixture.cache.find(['a-old0', 'a-old1'], 2);
    for (const page of found) fixture.pool.share(page);
    fixture.pool.release(Int32Array.from(found));
    fixture.run('a', '', 7);
    expect([fixture.left('a', 'old'), fixture.left('a', 'new')]).toEqual([2, 1]);
  });

  it('takes free pages before it evicts', () => {
    const fixture = new Fixture(8);
    fixture.run('a', 'x', 4);
    for (let round = 0; round < 5; round++) fixture.run('a', '', 4);
    expect(fixture.left('a', 'x')).toBe(4);
  });

  it('leaves a block where it was stored first', () => {
    const fixture = new Fixture(8);
    const pages = new IntBuffer(2);
    fixture.pool.allocate(2, pages);
    fixture.cache.store(pages.at(0), 'k', 'a');
    fixture.cache.store(pages.at(1), 'k', 'a');
    expect(fixture.cache.find(['k'], 1)).toEqual([pages.at(0)]);
    fixture.pool.release(pages.view());
    fixture.check();
    expect(fixture.cache.kept).toBe(1);
  });

  it('forgets everything at a reset, also what is being read', () => {
    const fixture = new Fixture(8);
    fixture.run('a', 'x', 3);
    const pages = new IntBuffer(1);
    fixture.pool.allocate(1, pages);
    fixture.cache.store(pages.at(0), 'k', 'a');
    fixture.pool.discard(fixture.cache.reset());
    expect([fixture.left('a', 'x'), fixture.cache.find(['k'], 1), fixture.cache.size]).toEqual([0, [], 0]);
    fixture.check();
    fixture.pool.release(pages.view());
    fixture.check();
    expect([fixture.pool.free, fixture.cache.kept]).toEqual([8, 0]);
  });

  it('notices books that contradict each other', () => {
    const fixture = new Fixture(4);
    fixture.run('a', 'x', 2);
    expect(() => fixture.cache.checkIntegrity(() => true)).toThrow('kept by mistake');
  });

  it('keeps its books under random use', () => {
    const fixture = new Fixture(30);
    const draw = random(4);
    const held: Int32Array[] = [];
    for (let round = 0; round < 3000; round++) {
      const tenant = `t${draw(3)}`;
      const keys = Array.from({ length: 1 + draw(6) }, (_, index) => `${tenant}-${draw(4) === 0 ? draw(50) : index}`);
      const found = fixture.cache.find(keys, keys.length);
      for (const page of found) fixture.pool.share(page);
      const pages = new IntBuffer(1);
      pages.append(Int32Array.from(found));
      fixture.pool.allocate(keys.length - found.length, pages, tenant, draw(2) === 0);
      pages.view().forEach((page, index) => fixture.cache.store(page, keys[index] as string, tenant));
      held.push(pages.view());
      if (held.length > draw(8)) fixture.pool.release(held.splice(draw(held.length), 1)[0] as Int32Array);
      if (draw(500) === 0) fixture.pool.discard(fixture.cache.reset());
      fixture.check();
    }
    for (const pages of held) fixture.pool.release(pages);
    fixture.check();
    expect(fixture.pool.used).toBe(0);
  });
});

describe('tenants in the prefix cache', () => {
  it('keep their recent pages while another one floods', () => {
    const fixture = new Fixture(100);
    fixture.run('quiet', 'mine', 20);
    for (let round = 0; round < 50; round++) fixture.run('flood', `r${round}-`, 10);
    expect(fixture.left('quiet', 'mine')).toBe(20);
    expect(fixture.cache.kept).toBe(100);
  });

  it('lose what is above their floor to one that keeps less than its quota', () => {
    const fixture = new Fixture(100);
    fixture.run('large', 'x', 100);
    fixture.run('small', 'y', 40);
    expect([fixture.left('large', 'x'), fixture.left('small', 'y')]).toEqual([60, 40]);
  });

  it('keep their floor against running sequences too, unless one runs alone', () => {
    const fixture = new Fixture(100);
    fixture.run('quiet', 'mine', 40);
    // Two tenants: half of the pool is two floors of 25.
    expect(fixture.pool.availableTo('flood')).toBe(75);
    expect(fixture.run('flood', '', 76)).toBe(false);
    expect(fixture.run('flood', '', 75)).toBe(true);
    expect(fixture.left('quiet', 'mine')).toBe(25);
    expect(fixture.pool.availableTo('quiet')).toBe(100);
    expect(fixture.run('flood', '', 90, true)).toBe(true);
    expect(fixture.left('quiet', 'mine')).toBe(10);
  });

  it('below their floor are passed over, however long unused their pages are', () => {
    const fixture = new Fixture(100);
    fixture.run('modest', 'old', 10);
    fixture.run('large', 'x', 90);
    fixture.run('new', 'y', 20);
    expect([fixture.left('modest', 'old'), fixture.left('large', 'x')]).toEqual([10, 70]);
  });

  it('lose their floor when they have not used it for ten minutes', () => {
    const fixture = new Fixture(100);
    fixture.run('gone', 'x', 50);
    fixture.nowMs += 10 * 60_000 + 1;
    expect(fixture.pool.availableTo('flood')).toBe(100);
    fixture.run('flood', 'y', 90);
    expect([fixture.left('gone', 'x'), fixture.left('flood', 'y')]).toEqual([10, 90]);
  });

  it('lose it before anybody else loses a page', () => {
    const fixture = new Fixture(12);
    fixture.run('gone', 'y', 3);
    fixture.nowMs += 10 * 60_000 + 1;
    fixture.run('large', 'x', 9);
    fixture.run('large', '', 1);
    expect([fixture.left('gone', 'y'), fixture.left('large', 'x')]).toEqual([2, 9]);
  });

  it('use their pages when they find them too', () => {
    const fixture = new Fixture(12);
    fixture.run('reads', 'x', 4);
    fixture.nowMs += 9 * 60_000;
    fixture.pool.share(fixture.cache.find(['reads-x0'], 1)[0] as number);
    fixture.nowMs += 2 * 60_000;
    // Three are kept, below the floor, and one is being read.
    expect(fixture.pool.availableTo('flood')).toBe(8);
  });

  it('lose their own first where they keep more than an equal share', () => {
    const fixture = new Fixture(12);
    fixture.run('b', 'older', 5);
    fixture.run('a', 'x', 7);
    fixture.run('a', '', 1);
    expect([fixture.left('b', 'older'), fixture.left('a', 'x')]).toEqual([5, 6]);
  });

  it('with more tenants than floors every page can still be had', () => {
    const fixture = new Fixture(20);
    for (let tenant = 0; tenant < 20; tenant++) fixture.run(`t${tenant}`, 'x', 1);
    expect(fixture.run('new', 'y', 20)).toBe(true);
    expect(fixture.left('new', 'y')).toBe(20);
  });
});

describe('BlockHasher', () => {
  const scope: CacheScope = { tenant: 'a', adapterVersion: '', cacheSalt: null };
  const block = Int32Array.from({ length: 16 }, (_, index) => index);

  it('gives the same scope and tokens the same key, and each other scope another', () => {
    const hasher = new BlockHasher();
    const scopes: CacheScope[] = [
      scope,
      { ...scope, tenant: 'b' },
      { ...scope, tenant: '' },
      { ...scope, adapterVersion: 'v1' },
      { ...scope, adapterVersion: 'v2' },
      { ...scope, cacheSalt: '' },
      { ...scope, cacheSalt: 'v1' },
      { ...scope, cacheSalt: 'null' },
      { tenant: 'a","', adapterVersion: '', cacheSalt: null },
      { tenant: 'a', adapterVersion: '","', cacheSalt: 'x'.repeat(100_000) },
    ];
    const keys = scopes.map((each) => hasher.next(hasher.root(each), block));
    expect(new Set(keys).size).toBe(scopes.length);
    expect(hasher.next(hasher.root({ ...scope }), block.slice())).toBe(keys[0]);
  });

  it('has a secret of its own', () => {
    expect(new BlockHasher().root(scope)).not.toBe(new BlockHasher().root(scope));
  });

  it('depends on every token, on their order and on what came before', () => {
    const hasher = new BlockHasher();
    const root = hasher.root(scope);
    const keys = new Set([hasher.next(root, block), hasher.next(hasher.next(root, block), block)]);
    for (let index = 0; index < 16; index++) {
      const changed = block.slice();
      changed[index] = 70_000 + index;
      keys.add(hasher.next(root, changed));
    }
    keys.add(hasher.next(root, block.slice().reverse()));
    expect(keys.size).toBe(19);
  });
});
