/** Beginnings of documents whose shortest ending is found, whatever lies on the way to it. */
import { beforeAll, expect, it } from 'vitest';
import type { NativeVocabulary } from '../../../src/control/engine/native-grammar.ts';
import { compile, END, generateOptions, makeVocabulary, smallTokens } from './drive.ts';

const tokens = smallTokens();
let vocabulary: NativeVocabulary;

beforeAll(async () => {
  vocabulary = await makeVocabulary(tokens, [END]);
});

const names = (value: unknown) => ({ type: 'object', patternProperties: { '^x.*$': value } });
const quarters = { type: 'number', multipleOf: 0.25, not: { multipleOf: 0.5 } };

it.each<[string, unknown, string, unknown]>([
  ['nothing but zero', { maximum: 0 }, '0.', 0],
  ['nothing but zero, of many', { oneOf: [{}, { exclusiveMinimum: 0 }] }, '0.', 0],
  ['a fraction, where no whole number may come', quarters, '2', 2.25],
  ['a fraction behind a point', quarters, '2.', 2.25],
  ['no multiple of a coarse step', { type: 'number', not: { multipleOf: 1000 } }, '2000.', 2000.1],
  ['a multiple of a fine step alone', { type: 'number', not: { multipleOf: 1234e5 } }, '1234', 1234],
  ['a shorter value behind an escape', names({ const: false }), '{"x1', { 'x1\n': 0 }],
  ['a character that is written in six bytes', { type: 'string', pattern: '\u0001' }, '"', '\u0001'],
  ['the same, begun', { type: 'string', pattern: '\u0001"' }, '"a\\u0', 'a\u0001"'],
  ['a name that goes on', names({ type: 'integer' }), '{"x1', { x1: 0 }],
])('%s', async (_, schema, begun, expected) => {
  const grammar = await compile({ kind: 'json_schema', text: JSON.stringify(schema) }, generateOptions);
  const matcher = grammar?.createMatcher(vocabulary);
  expect(matcher?.advanceBytes(Buffer.from(begun))).toBe(true);
  const ending = Array.from(matcher?.completion() ?? [], (id) => tokens[id]?.toString() ?? '');
  expect(JSON.parse(begun + ending.join(''))).toEqual(expected);
  grammar?.release();
});
