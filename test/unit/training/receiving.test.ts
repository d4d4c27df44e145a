/** Uploads that are on their way at once. */
import { expect, test } from 'vitest';
import { Receiving } from '../../../src/control/training/receiving.ts';

const PER_ENTITY = 32;
const refused = { code: 'unavailable' };

test('where a few entities have all of their uploads on their way, each other still has its equal share', async () => {
  const receiving = new Receiving();
  let end: () => void = () => undefined;
  const held = new Promise<void>((resolve) => (end = resolve));
  const begin = (entity: string) => receiving.run(entity, () => held);
  const under = Array.from({ length: 8 * PER_ENTITY }, (_, at) => begin(`e${at % 8}`));
  await expect(begin('e0')).rejects.toMatchObject(refused);
  // 256 in nine parts.
  under.push(...Array.from({ length: 28 }, () => begin('late')));
  await expect(begin('late')).rejects.toMatchObject(refused);
  end();
  await Promise.all(under);
  expect(await receiving.run('e0', () => Promise.resolve('free'))).toBe('free');
});

test('one that fails leaves its place', async () => {
  const receiving = new Receiving();
  for (let round = 0; round < 2 * PER_ENTITY; round++) {
    const fails = receiving.run('e', () => Promise.reject(new Error('no')));
    await expect(fails).rejects.toThrow('no');
  }
});
