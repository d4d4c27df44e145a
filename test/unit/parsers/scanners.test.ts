/** The readers under the formats: JSON against JSON.parse, Python literals against a table, and the cost of endless markup. */
import { describe, expect, it } from 'vitest';
import type { ToolParserName } from '../../../src/control/sessions/parsers/create-parser.ts';
import { createOutputParser } from '../../../src/control/sessions/parsers/create-parser.ts';
import { JsonScanner, scanJson } from '../../../src/control/sessions/parsers/json-scanner.ts';
import { pythonLiteralAsJson } from '../../../src/control/sessions/parsers/python-literal.ts';
import * as generate from './generate.ts';
import { optionsFor, seeded } from './support.ts';

function parsesAsStructure(text: string): boolean {
  try {
    return typeof JSON.parse(text) === 'object' && !/^\s*null/.test(text);
  } catch {
    return false;
  }
}

describe('JSON', () => {
  it('is what JSON.parse takes, for generated and broken texts', () => {
    const random = seeded(20);
    let valid = 0;
    for (let i = 0; i < 4000; i++) {
      const text = generate.jsonText(random, i % 2 ? generate.object(random) : [generate.value(random)]);
      const tried = i % 4 < 3 ? generate.broken(random, text) : text;
      expect(scanJson(tried) !== null, tried).toBe(parsesAsStructure(tried));
      if (parsesAsStructure(tried)) valid++;
    }
    expect(valid).toBeGreaterThan(1000);
    expect(valid).toBeLessThan(3500);
  });

  it.each([
    '-0',
    '1.5e+3',
    '0.1',
    '1E-2',
    '10',
    '01',
    '1.',
    '.5',
    '-',
    '1e',
    '+1',
    '1e+',
    '--1',
    '0x1',
    '1_0',
    'tru',
    'truee',
  ])('reads [%s] as JSON.parse does', (word) => {
    expect(scanJson(`[${word}]`) !== null).toBe(parsesAsStructure(`[${word}]`));
  });

  it.each(['"a', '1', 'null', '', ' ', '{} {}', '[]]', 'x{}'])('%j is no structure', (text) => {
    expect(scanJson(text)).toBe(null);
  });

  it.each(['\x00', '\x1f', '\x20', '\x7f'])('reads a text with the character %j as JSON.parse does', (character) => {
    expect(scanJson(`["${character}"]`) !== null).toBe(parsesAsStructure(`["${character}"]`));
  });

  it('refuses what is too deep', () => {
    expect(scanJson('['.repeat(256) + ']'.repeat(256))).not.toBe(null);
    expect(scanJson('['.repeat(257) + ']'.repeat(257))).toBe(null);
  });

  it('notes where members lie, and stops behind the structure', () => {
    const text = ' {"a" : [1, {"x": 2}] ,"b":-1.5}tail';
    const scanner = new JsonScanner();
    expect(text.slice(scanner.feed(text, 0))).toBe('tail');
    const found = scanner.members.map((member) => [
      text.slice(member.keyStart, member.keyEnd),
      text.slice(member.start, member.end),
    ]);
    expect(found).toEqual([
      ['"a"', '[1, {"x": 2}]'],
      ['"b"', '-1.5'],
    ]);
  });
});

describe('Python literals', () => {
  it.each([
    ['None', null],
    ['True', true],
    ['-1', -1],
    ['+ 1', 1],
    ['--1', 1],
    ['1_000', 1000],
    ['0xff', 255],
    ['0b101', 5],
    ['0', 0],
    ['00', 0],
    ['1.', 1],
    ['.5', 0.5],
    ['01.5', 1.5],
    ['1e+5', 1e5],
    ['2E-3', 0.002],
    [`'a' "b"`, 'ab'],
    [`'''a\nb'''`, 'a\nb'],
    [String.raw`'\n\t\\\'\x41\u00e9\U0001F44D\101\q'`, "\n\t\\'Aé👍A\\q"],
    [String.raw`r'\n'`, '\\n'],
    [`u'x'`, 'x'],
    ['()', []],
    ['(1)', 1],
    ['(1,)', [1]],
    ['[1, [2, ()],]', [1, [2, []]]],
    ['{}', {}],
    [`{'a': 1, 2: "b", True: None,}`, { a: 1, 2: 'b', true: null }],
    [' \n[ ] ', []],
  ])('%s', (text, expected) => {
    expect(JSON.parse(pythonLiteralAsJson(text) ?? '"none"')).toEqual(expected);
  });

  it('keep all digits', () => {
    expect(pythonLiteralAsJson('12345678901234567890123')).toBe('12345678901234567890123');
    expect(pythonLiteralAsJson('0xffffffffffffffffffff')).toBe('1208925819614629174706175');
  });

  it.each([
    '',
    'x',
    '1 2',
    '1+1',
    '1j',
    '01',
    '1__0',
    '1_',
    '0xg',
    '0b2',
    "'a",
    "'a\nb'",
    `'a" `,
    "b'a'",
    "f'a'",
    "ur'a'",
    String.raw`'\x4'`,
    String.raw`'\U00110000'`,
    String.raw`'\N{DASH}'`,
    '[1',
    '[,]',
    '{1}',
    '{[1]: 2}',
    '{1: }',
    'f()',
    '...',
    '['.repeat(100) + ']'.repeat(100),
    `0x${'f'.repeat(2000)}`,
  ])('%j is none', (text) => {
    expect(pythonLiteralAsJson(text)).toBe(null);
  });
});

describe('endless markup', () => {
  /** Long enough that work on all of it per piece would not end in the test's time. */
  const LENGTH = 2 ** 20;
  const endless: [ToolParserName, string, string][] = [
    ['hermes', '<tool_call>{"name": "f", "arguments": {"a": "', 'x'],
    ['hermes', '', '<tool_cal'],
    ['hermes', '', '<tool_call>'],
    ['hermes', '<tool_call>{"name": "f", "arguments": {}}', ' '],
    ['hermes', '<tool_call>', '{"a":'],
    ['hermes', '<tool_call>{"name": "f", "arguments": {"b": 1', ', "a": 1'],
    ['hermes', ' ', ' '],
    ['llama3_json', '', '{"a":'],
    ['llama3_json', '', '{'],
    ['llama3_json', '', '<|python_tag|>'],
    ['llama3_json', '{"name": "f", "parameters": {}}', '; '],
    ['mistral', '', '[TOOL_CALLS]'],
    ['mistral', '[TOOL_CALLS]f[CALL_ID]', 'x'],
    ['mistral', '[TOOL_CALLS][', '{"name":"f","arguments":{}},'],
    ['mistral', '[TOOL_CALLS][{"name":"f","arguments":{}}', ' '],
    ['mistral', '[TOOL_CALLS][', '{"a":'],
    ['qwen3_coder', '', '<tool_call><function=f><parameter=a>'],
    ['qwen3_coder', '<function=f><parameter=a>', '</paramete'],
    ['qwen3_coder', '<function=f><parameter=', 'a'],
    ['qwen3_coder', '<function=f><parameter=whole>', '1'],
    ['pythonic', '[f(a=', '['],
    ['pythonic', '[f(a=', '1'],
    ['pythonic', '[f(a="', '\\"'],
    ['pythonic', '[f(a=', '"x" '],
    ['pythonic', '[f(a=(', '"x" '],
    ['pythonic', '[f(a=(', '1,'],
    ['pythonic', '[f(a=', '- '],
    ['pythonic', '[f(a={', '1:(2),'],
    ['pythonic', '[f(a=', '"""x"" """'],
    ['pythonic', '[', 'f(),'],
    ['pythonic', '[f', 'f'],
    ['pythonic', '[f(a', 'a'],
    ['pythonic', '[f(a=1', ' '],
    ['harmony', '', '<|channel|>analysis<|message|>'],
    ['harmony', '<|channel|>commentary to=functions.f<|message|>', '{"a":'],
    ['harmony', '', '<|start|>'],
  ];

  it.each(endless)('%s: %s, then %j', (toolParser, start, more) => {
    const schema = { function: { name: 'f', parameters: { properties: { whole: { type: 'number' } } } } };
    const text = start + more.repeat(Math.ceil(LENGTH / more.length));
    for (const callTiming of ['complete', 'begun'] as const) {
      const parser = createOutputParser(optionsFor({ toolParser, toolDefinitions: [schema], callTiming }));
      let deltas = 0;
      for (let at = 0; at < text.length; at += 4) deltas += parser.push(text.slice(at, at + 4)).length;
      deltas += parser.finish().length;
      expect(deltas).toBeLessThanOrEqual(text.length);
    }
  });

  it('pythonic: many arguments', () => {
    const parser = createOutputParser(optionsFor({ toolParser: 'pythonic', callTiming: 'begun' }));
    parser.push('[f(a=1');
    for (let i = 0; i < LENGTH / 8; i++) parser.push(`, a${i}=${i}`);
    expect(parser.push(')]')).not.toEqual([]);
  });

  it('required: a long argument comes out piece by piece', () => {
    const parser = createOutputParser(optionsFor({ tools: 'required' }));
    parser.push('[{"name": "f", "parameters": {"a": "');
    for (let i = 0; i < LENGTH / 4; i++) {
      if (parser.push('xxxx').length !== 1) throw new Error('held back');
    }
    expect(parser.finish()).toEqual([]);
  });
});
