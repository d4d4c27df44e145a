import { expect, test } from 'vitest';
import type { ReplyOptions } from '../../../src/control/sessions/session.ts';
import { toolFormat } from '../../../src/control/sessions/tool-grammar.ts';

const many = (count: number, value: unknown) =>
  Object.fromEntries(Array.from({ length: count }, (_, index) => [`p${index}`, value]));

function format(parameters: Record<string, unknown>): string | null {
  const options: ReplyOptions = {
    tools: 'auto',
    needsToolFormat: true,
    toolDefinitions: [{ type: 'function', function: { name: 'f', strict: true, parameters } }],
    parallelToolCalls: true,
    streamsCalls: false,
    includeReasoning: true,
  };
  return toolFormat(options, 'qwen3_coder');
}

const object = (properties: object, more: object = {}) => ({ type: 'object', properties, ...more });

// What is bounded here would take minutes or all memory otherwise, and the test its time-out.
test('a name that is required again and again costs little', () => {
  const required = Array.from({ length: 2_000_000 }, () => 'p499');
  const parameters = object(many(500, { type: 'integer' }), { required });
  expect(format(parameters)).toContain('p499');
});

test('definitions that would be repeated for very many parameters are refused', () => {
  const $defs = { a: { type: 'string', enum: Array.from({ length: 20_000 }, (_, index) => `value ${index}`) } };
  const parameters = (count: number) => object(many(count, { $ref: '#/$defs/a' }), { $defs });
  expect(format(parameters(4))).toContain('value 19999');
  expect(() => format(parameters(500))).toThrow('$defs cannot be strict: they are too large for so many parameters');
});

test('nothing is copied of what is no schema, however many references lead to it', () => {
  const parameters = object(many(2000, { $ref: '#/examples' }), { examples: many(100_000, 1) });
  expect(() => format(parameters)).toThrow('this tool format needs one type');
});
