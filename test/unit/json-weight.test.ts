import { expect, test } from 'vitest';
import { jsonWeight } from '../../src/control/json-weight.ts';

test('texts count by their characters, all else by the piece', () => {
  expect(jsonWeight('abc')).toBe(3 + 16);
  expect(jsonWeight({ role: 'user', content: ['ab', 1, null] })).toBe(16 + 4 + (4 + 16) + 7 + 16 + (2 + 16) + 16 + 16);
  expect(jsonWeight(new Int32Array(1000))).toBe(16);
});

test('a value may be nested as deeply as JSON can be', () => {
  const depth = 200_000;
  expect(jsonWeight(JSON.parse('['.repeat(depth) + ']'.repeat(depth)))).toBe(depth * 16);
});
