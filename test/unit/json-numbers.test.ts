import { describe, expect, test } from 'vitest';
import { fromTagged, parseJsonNumbers, toTagged, writeJson } from '../../src/control/json-numbers.ts';

const KEPT = '{"a":[1.0,-0.0,100000.0,1e+21,9007199254740993,-12345678901234567890],"b":{"c":2.0}}';

describe('numbers that JavaScript would change', () => {
  test('are written as they were read', () => {
    expect(writeJson(parseJsonNumbers(KEPT))).toBe(KEPT);
    expect(writeJson(parseJsonNumbers('[1e5, 1E2, 20.00]'))).toBe('[100000.0,100.0,20.0]');
  });

  test('are still so behind a message to another thread', () => {
    expect(writeJson(structuredClone(parseJsonNumbers(KEPT)))).toBe(KEPT);
  });

  test('are boxed floats and big integers; all others are plain', () => {
    const value = parseJsonNumbers('[1.0, 9007199254740993, 1, 0.5, 9007199254740991, 1e400]');
    expect(value).toEqual([new Number(1), 9007199254740993n, 1, 0.5, 9007199254740991, Infinity]);
  });
});

test.each([
  '{"1.0":"1.0","a\\"1.0":"\\"1.0"}',
  '"9007199254740993"',
  '[0.5,7,"\\\\",1,null,true]',
  '{"__proto__":{"x":1}}',
])('%s is what JSON.parse makes of it', (text) => {
  expect(parseJsonNumbers(text)).toEqual(JSON.parse(text));
  expect(writeJson(parseJsonNumbers(text))).toBe(text);
});

test('a number beyond doubles is written as one, never as null', () => {
  const written = writeJson(parseJsonNumbers('{"const":1e309,"enum":[-1e400,1.0]}'));
  expect(written).toBe('{"const":1e999,"enum":[-1e999,1.0]}');
  expect(writeJson(fromTagged(toTagged([Infinity])))).toBe('[1e999]');
});

test('an own __proto__ stays a key beside exact numbers', () => {
  const text = '{"__proto__":{"x":1.0},"y":2.0}';
  expect(writeJson(parseJsonNumbers(text))).toBe(text);
});

test.each(['{"a":1.0.0}', '[1.0,]', '[01.0]', '[--1.0]', '1.0e'])('%s is refused as JSON.parse does', (text) => {
  expect(() => parseJsonNumbers(text)).toThrow(SyntaxError);
});

test('an integer has at most as many digits as Python reads', () => {
  expect(writeJson(parseJsonNumbers('9'.repeat(4300)))).toBe('9'.repeat(4300));
  expect(() => parseJsonNumbers('9'.repeat(4301))).toThrow('an integer has more than 4300 digits');
});

test.each(['a', '\\n', '\\"', '\\\\'])('a string of many megabytes of %s beside a number is read', (piece) => {
  const text = `{"a":"${piece.repeat(12_000_000 / piece.length)}","b":1.0}`;
  const { a, b } = parseJsonNumbers(text) as { a: string; b: unknown };
  expect([a.length, b]).toEqual([12_000_000 / piece.length, new Number(1)]);
});
