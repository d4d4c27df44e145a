/** Strict tools in every format: random walks through the grammar, read by the reply parser, with arguments that validate. */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { beforeAll, describe, expect, it } from 'vitest';
import { loadNative } from '../../src/control/engine/native.ts';
import type { NativeMatcher, NativeVocabulary } from '../../src/control/engine/native-grammar.ts';
import { compileGrammar, GENERATE } from '../../src/control/grammar/compile.ts';
import type { ToolParserName } from '../../src/control/sessions/parsers/create-parser.ts';
import { toolFormat } from '../../src/control/sessions/tool-grammar.ts';
import { REPLY } from '../fixtures/generation-input.ts';
import { parse } from '../unit/parsers/support.ts';

const addon = loadNative();
const ajv = new Ajv2020({ strict: false, formats: { date: /^\d{4}-\d\d-\d\d$/ } });
const SIZE = 257;
const RUNS = 60;
let vocabulary: NativeVocabulary;
beforeAll(async () => {
  const offsets = Int32Array.from({ length: SIZE + 1 }, (_, i) => Math.min(i, 256));
  vocabulary = await addon.createVocabulary(
    Uint8Array.from({ length: 256 }, (_, i) => i),
    offsets,
    Int32Array.of(256),
  );
});

const SCHEMAS: Record<string, object> = {
  lock: {
    type: 'object',
    properties: {
      size: { type: 'string', enum: ['small', 'large'] },
      n: { type: 'integer', minimum: 3 },
      note: { type: 'string' },
      ok: { type: ['boolean', 'null'] },
    },
    required: ['size', 'n'],
    additionalProperties: false,
  },
  free: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'string' } }, additionalProperties: false },
  // What may be null, and nested models, in the ways of pydantic, zod and hand-written schemas.
  maybe: {
    type: 'object',
    properties: {
      a: { anyOf: [{ type: 'string' }, { type: 'null' }], title: 'A', default: null },
      b: { anyOf: [{ type: 'integer', minimum: 3 }, { type: 'null' }] },
      d: { oneOf: [{ type: 'null' }, { type: 'string', enum: ['x', 'yy'] }] },
      e: { enum: ['x', 'yy', null] },
      f: { type: ['string', 'null'], enum: ['x', null] },
      g: { enum: ['x'] },
      h: { $ref: '#/$defs/Place' },
      i: { anyOf: [{ $ref: '#/$defs/Colour' }, { type: 'null' }], default: null },
    },
    $defs: {
      Place: { type: 'object', properties: { of: { $ref: '#/$defs/Colour' } }, additionalProperties: false },
      Colour: { type: 'string', enum: ['red', 'blue'], title: 'Colour' },
    },
    required: ['a', 'b', 'd', 'e', 'f', 'g', 'h', 'i'],
    additionalProperties: false,
  },
  // Texts with bounds, also where a format writes them bare.
  bounded: {
    type: 'object',
    properties: {
      a: { type: 'string', minLength: 2, maxLength: 4 },
      b: { type: 'string', pattern: '^[A-Z]{2}-' },
      c: { type: 'string', format: 'date' },
      d: { anyOf: [{ type: 'string', minLength: 1, pattern: 'x' }, { type: 'null' }] },
      e: { type: ['string', 'null'], maxLength: 3 },
      f: { type: 'string', enum: ['x', 'yy', 'yyy'], minLength: 2 },
      g: { $ref: '#/$defs/Word', not: { const: 'a' } },
      h: { type: 'string', pattern: '^(</parameter>|null|ok)$' },
    },
    $defs: { Word: { type: 'string', pattern: '^[ab]$' } },
    required: ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'],
    additionalProperties: false,
  },
  noop: { type: 'object', additionalProperties: false },
};
const definitions = Object.entries(SCHEMAS).map(([name, parameters]) => ({
  type: 'function',
  function: { name, parameters, strict: true },
}));

const STARTS: [ToolParserName, string][] = [
  ['hermes', 'So: <tool_call>'],
  ['llama3_json', '{'],
  ['mistral', '[TOOL_CALLS]'],
  ['qwen3_coder', 'x <tool_call>'],
  ['qwen3_coder', '<function='],
  ['pythonic', '['],
  ['harmony', '<|channel|>analysis<|message|>So.<|end|><|start|>assistant<|channel|>commentary to=functions.'],
  ['harmony', ' to=functions.'],
];

function randomText(matcher: NativeMatcher, start: string, random: () => number): string {
  const out = [...Buffer.from(start)];
  expect(matcher.advanceBytes(Uint8Array.from(out))).toBe(true);
  const mask = new Int32Array(Math.ceil(SIZE / 32));
  for (let i = 0; i < 90; i++) {
    matcher.fillMask(mask);
    const bit = (token: number) => ((mask[token >> 5] ?? 0) >>> (token & 31)) & 1;
    const allowed = Array.from({ length: SIZE }, (_, token) => token).filter(
      (token) => bit(token) && (token < 127 || token === 256),
    );
    const token = allowed[Math.floor(random() * allowed.length)] ?? 256;
    if (token === 256) break;
    expect(matcher.advance(token)).toBe(true);
    out.push(token);
  }
  const rest = matcher.completion();
  expect(rest).not.toBeNull();
  return Buffer.from([...out, ...(rest ?? [])]).toString();
}

function generator(seed: number): () => number {
  let state = seed;
  return () => (state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff) / 0x80000000;
}

describe.each([true, false])('parallel calls: %s', (parallelToolCalls) => {
  it.each(STARTS)('%s, begun with %j', async (toolParser, start) => {
    const reply = { ...REPLY, tools: 'auto', toolDefinitions: definitions, parallelToolCalls } as const;
    const text = `{"format":${toolFormat(reply, toolParser)}}`;
    const grammar = await compileGrammar(addon, { kind: 'structural_tag', text }, { ...GENERATE, seconds: 60 });
    for (let run = 1; run <= RUNS; run++) {
      const output = randomText(grammar.createMatcher(vocabulary), start, generator(run));
      const reasoning = { reasoningParser: null, promptReasoning: 'none' } as const;
      const { toolCalls } = parse({ ...reply, toolParser, ...reasoning }, output);
      expect(toolCalls.length, output).toBeGreaterThan(0);
      if (!parallelToolCalls) expect(toolCalls.length, output).toBe(1);
      for (const { name, arguments: json } of toolCalls) {
        const schema = SCHEMAS[name];
        expect(schema && ajv.validate(schema, JSON.parse(json)), `${output} -> ${name} ${json}`).toBe(true);
      }
    }
  });
});

describe('a text that qwen3_coder writes bare keeps to its schema', () => {
  const grammarOf = (schema: object) => {
    const parameters = { type: 'object', properties: { a: schema }, required: ['a'] };
    const tool = { type: 'function', function: { name: 'f', parameters, strict: true } };
    const reply = { ...REPLY, tools: 'auto', toolDefinitions: [tool] } as const;
    const source = { kind: 'structural_tag', text: `{"format":${toolFormat(reply, 'qwen3_coder')}}` } as const;
    return compileGrammar(addon, source, { ...GENERATE, seconds: 60 });
  };
  it.each<[object, string[], string[]]>([
    [{ maxLength: 100_000 }, ['', 'é🙂'.repeat(50_000)], ['é🙂'.repeat(50_000) + 'a', 'a'.repeat(100_001)]],
    [{ anyOf: [{ maxLength: 1 }, { minLength: 3, maxLength: 4 }] }, ['', '🙂', '🙂🙂🙂', 'abcd'], ['ab', 'abcde']],
    [{ maxLength: 3 }, ['a<b', '<<a'], ['a<', 'ab<', 'ab<c']],
    [{ minLength: 2, maxLength: 3 }, ['ab', 'é🙂"', ' \n '], ['', 'é', 'abcd']],
    [{ pattern: '[0-9]' }, ['a1', '7\n7'], ['', 'a', '\n']],
    [{ pattern: '^\\S+$', maxLength: 400 }, ['x'.repeat(400), '<p>', '</x'], ['x'.repeat(401), 'a b', '</param']],
    [{ pattern: 'null|para' }, ['nulls', 'para<pam'], ['null', ' NULL ', '<parameter=para']],
    [{ format: 'date-time' }, ['2024-02-29T00:00:00Z'], ['2024-02-30', '"2024-02-29T00:00:00Z"']],
    [{ enum: ['x', 'yy'], minLength: 2 }, ['yy'], ['x', 'yyy']],
    [{ format: 'unheard-of' }, ['', 'any'], []],
  ])('%j', async (schema, good, bad) => {
    const grammar = await grammarOf({ type: 'string', ...schema });
    const takes = (value: string) => {
      const matcher = grammar.createMatcher(vocabulary);
      const call = `<tool_call>\n<function=f>\n<parameter=a>\n${value}\n</parameter>\n</function>\n</tool_call>`;
      return matcher.advanceBytes(Buffer.from(call));
    };
    expect(good.filter((value) => !takes(value))).toEqual([]);
    expect(bad.filter(takes)).toEqual([]);
  });

  it('within as many states as a grammar may have', async () => {
    await expect(grammarOf({ type: 'string', pattern: 'x', maxLength: 100_000 })).rejects.toThrow('too many states');
  });
});

describe('what a format cannot keep to is refused by name', () => {
  const refusal = (toolParser: ToolParserName, parameters: object) => () =>
    toolFormat(
      {
        ...REPLY,
        tools: 'auto',
        toolDefinitions: [{ type: 'function', function: { name: 'f', parameters, strict: true } }],
      },
      toolParser,
    );
  it.each<[ToolParserName, object, string]>([
    ['qwen3_coder', { properties: { a: { $ref: '#/$defs/a' } }, $defs: { a: {} } }, 'properties.a'],
    ['qwen3_coder', { properties: { 'a>': { type: 'string' } } }, 'a name holds ">"'],
    ['qwen3_coder', { properties: { '\u00a0a': { type: 'string' } } }, 'a name begins or ends with white space'],
    ['qwen3_coder', { properties: { a: { type: 'string', enum: ['null'] } } }, 'properties.a.enum'],
    ['qwen3_coder', { properties: { a: { enum: ['null', 'x'], maxLength: 1 } } }, 'properties.a.enum'],
    ['qwen3_coder', { properties: { a: { enum: ['1', 1] } } }, 'properties.a.type'],
    ['qwen3_coder', { properties: { a: { anyOf: [true, { type: 'null' }] } } }, 'properties.a.type'],
    ['qwen3_coder', { properties: { a: { anyOf: [{ type: 'string' }, { type: 'integer' }] } } }, 'properties.a.type'],
    [
      'qwen3_coder',
      { properties: { a: { anyOf: [{ type: 'string' }, { type: 'null' }], minLength: 1 } } },
      'properties.a.type',
    ],
    ['pythonic', { minProperties: 1 }, 'minProperties cannot be strict'],
    ['pythonic', { properties: { 'a-b': {} } }, 'cannot be a Python argument'],
    ['pythonic', { required: ['z'] }, 'is not among the properties'],
  ])('%s %j', (toolParser, parameters, message) => {
    expect(refusal(toolParser, parameters)).toThrow(message);
  });
});
