import { expect, test } from 'vitest';
import { pageLength } from '../../../src/control/store/row-page.ts';

const rows = (...bytes: number[]) => bytes.map((size) => ({ bytes: size }));

test.each([
  ['none', rows(), 5, 0],
  ['as many as there are', rows(1, 2, 3), 5, 3],
  ['as many as were asked for', rows(1, 2, 3), 2, 2],
  ['those that fit', rows(2 ** 19, 2 ** 19, 1), 5, 2],
  ['one that is larger than a page', rows(2 ** 21, 2 ** 21), 5, 1],
])('a page has %s', (_, sizes, limit, length) => expect(pageLength(sizes, limit)).toBe(length));
