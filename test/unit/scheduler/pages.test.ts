import { describe, expect, it } from 'vitest';
import { IntBuffer } from '../../../src/control/scheduler/int-buffer.ts';
import { PagePool, pagesFor } from '../../../src/control/scheduler/pages.ts';
import { random } from './drive.ts';

function take(pool: PagePool, count: number): Int32Array {
  const pages = new IntBuffer(1);
  expect(pool.allocate(count, pages)).toBe(true);
  return pages.view();
}

describe('PagePool', () => {
  it('hands out every page once and takes it back', () => {
    const pool = new PagePool(5);
    const pages = take(pool, 5);
    expect([...pages].sort()).toEqual([0, 1, 2, 3, 4]);
    expect([pool.free, pool.used]).toEqual([0, 5]);
    pool.release(pages);
    expect([pool.free, pool.used]).toEqual([5, 0]);
    pool.checkIntegrity();
  });

  it('gives all pages asked for or none', () => {
    const pool = new PagePool(3);
    const pages = new IntBuffer(4);
    expect(pool.allocate(4, pages)).toBe(false);
    expect([pages.length, pool.free]).toEqual([0, 3]);
  });

  it('keeps a shared page until the last reader lets go', () => {
    const pool = new PagePool(2);
    const pages = take(pool, 1);
    pool.share(pages[0] as number);
    pool.release(pages);
    expect(pool.used).toBe(1);
    pool.checkIntegrity();
    pool.release(pages);
    expect(pool.used).toBe(0);
  });

  it('refuses a double free, a free page to share and a page that does not exist', () => {
    const pool = new PagePool(2);
    const pages = take(pool, 1);
    pool.release(pages);
    expect(() => pool.release(pages)).toThrow('is not in use');
    expect(() => pool.share(0)).toThrow('is not in use');
    expect(() => pool.release(Int32Array.of(2))).toThrow('is not in use');
    expect(() => pool.release(Int32Array.of(-1))).toThrow('is not in use');
    pool.checkIntegrity();
  });

  it('refuses a pool without pages', () => {
    expect(() => new PagePool(0)).toThrow('at least one page');
  });

  it('balances after any order of takes, shares and releases', () => {
    const pool = new PagePool(40);
    const draw = random(3);
    const held: Int32Array[] = [];
    for (let round = 0; round < 2000; round++) {
      const pages = new IntBuffer(4);
      if (draw(2) === 0 && pool.allocate(draw(6), pages)) {
        held.push(pages.view());
        if (draw(4) === 0) {
          for (const page of pages.view()) pool.share(page);
          held.push(pages.view().slice());
        }
      } else if (held.length > 0) {
        pool.release(held.splice(draw(held.length), 1)[0] as Int32Array);
      }
      expect(pool.used).toBe(new Set(held.flatMap((pages) => [...pages])).size);
    }
    pool.checkIntegrity();
    for (const pages of held) pool.release(pages);
    expect(pool.free).toBe(40);
  });
});

describe('pagesFor', () => {
  it('rounds up to whole pages of 16 positions', () => {
    expect([0, 1, 16, 17, 32, 33].map(pagesFor)).toEqual([0, 1, 1, 2, 2, 3]);
  });
});
