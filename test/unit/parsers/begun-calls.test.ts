/** Calls of streams: handed out from the beginning of their arguments on. */
import { describe, expect, it } from 'vitest';
import type { ToolParserName } from '../../../src/control/sessions/parsers/create-parser.ts';
import { deltasOf, optionsFor, parseEveryWay, piecesOf, seeded } from './support.ts';

const begun = (toolParser: ToolParserName) => optionsFor({ toolParser, callTiming: 'begun' });

/** [what, output, calls as [name, arguments as they came], content] */
type Case = [string, string, [string, string][], string];

const HERMES: Case[] = [
  ['cut', 'So:\n<tool_call>{"name": "f", "arguments": {"a": "b', [['f', '{"a": "b']], 'So:\n'],
  ['cut behind the arguments', '<tool_call>{"name": "f", "arguments": {"a": 1}', [['f', '{"a": 1}']], ''],
  ['broken', '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>', [['f', '{"a": ']], '}}</tool_call>'],
  [
    'a lacking brace',
    '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>',
    [['f', '{"a": 1}']],
    '</tool_call>',
  ],
  ['a brace too many', '<tool_call>{"name":"f","arguments":{}}}</tool_call>', [['f', '{}']], '}</tool_call>'],
  ['text instead of a closing tag', '<tool_call>{"name":"f","arguments":{}}\n so', [['f', '{}']], '\n so'],
  ['members behind the arguments', '<tool_call>{"name":"f","arguments":{},"b":{"c":1}}</tool_call>', [['f', '{}']], ''],
  ['a name twice: the later one', '<tool_call>{"name":"g","name":"f","arguments":{}}</tool_call>', [['f', '{}']], ''],
  ['arguments first', '<tool_call>{"arguments":{"a":1},"name":"f"}</tool_call>', [['f', '{"a":1}']], ''],
  ['a string of JSON', '<tool_call>{"name":"f","arguments":"{}"}</tool_call>', [['f', '{}']], ''],
  ['an array', '<tool_call>[{"name":"f","arguments":{}}]', [], '<tool_call>[{"name":"f","arguments":{}}]'],
  ['no name', '<tool_call>{"arguments": {"a', [], '<tool_call>{"arguments": {"a'],
  ['an empty name', '<tool_call>{"name": "", "arguments": {"a', [], '<tool_call>{"name": "", "arguments": {"a'],
  ['arguments that are no object', '<tool_call>{"name":"f","arguments":[', [], '<tool_call>{"name":"f","arguments":['],
];

const LLAMA: Case[] = [
  ['cut', '<|python_tag|>{"name": "f", "parameters": {"a": [1', [['f', '{"a": [1']], ''],
  ['by the other name', '{"name": "f", "arguments": {"a": 1}}; ', [['f', '{"a": 1}']], ''],
  ['by both names: the first', '{"name":"f","arguments":{"a":1},"parameters":{}}', [['f', '{"a":1}']], ''],
  ['no object by the first name', '{"name":"f","arguments":"{}","parameters":{"a":1}}', [['f', '{"a":1}']], ''],
  ['a name behind the arguments too', '{"name":"f","parameters":{},"name":"g"}', [['f', '{}']], ''],
  [
    'broken, and the search goes on',
    '{"name":"f","parameters":{"a":x}} {"name":"g","parameters":{}}',
    [
      ['f', '{"a":'],
      ['g', '{}'],
    ],
    'x}} ',
  ],
];

const MISTRAL: Case[] = [
  ['a cut call by its name', 'x[TOOL_CALLS]f{"a": {"b', [['f', '{"a": {"b']], 'x'],
  ['space before the arguments', '[TOOL_CALLS]f[ARGS] {"a": 1', [['f', '{"a": 1']], ''],
  ['a broken call by its name', '[TOOL_CALLS]f{"a"}', [['f', '{"a"']], '}'],
  ['an object that holds the name', '[TOOL_CALLS]{"name": "f", "arguments": {"a', [['f', '{"a']], ''],
  [
    'two calls',
    '[TOOL_CALLS]f{"a":1}[TOOL_CALLS]g{',
    [
      ['f', '{"a":1}'],
      ['g', '{'],
    ],
    '',
  ],
  ['an array', '[TOOL_CALLS][{"name":"f","arguments":{"a', [['f', '{"a']], ''],
  [
    'an array of two',
    '[TOOL_CALLS] [ {"name":"f","arguments":{"a":1}} , {"arguments":{"b":2},"name":"g"}, {"name":"h","arguments":{"c":',
    [
      ['f', '{"a":1}'],
      ['g', '{"b":2}'],
      ['h', '{"c":'],
    ],
    '',
  ],
  ['a broken call in an array', '[TOOL_CALLS][{"name":"f","arguments":{"a":x}}]', [['f', '{"a":']], 'x}}]'],
  ['no call in an array', '[TOOL_CALLS][{"name":"f","arguments":{}},{"a":1}]', [['f', '{}']], ',{"a":1}]'],
  ['an array without a name', '[TOOL_CALLS][{"arguments":{"a', [], '[TOOL_CALLS][{"arguments":{"a'],
];

const CALL = '<|channel|>commentary to=functions.f<|constrain|>json<|message|>';
const HARMONY: Case[] = [
  ['cut', `${CALL}{"a": "b`, [['f', '{"a": "b']], ''],
  ['whole', `${CALL} {"a": 1} <|call|>`, [['f', '{"a": 1}']], ''],
  ['broken', `${CALL}{"a": b}<|call|>`, [['f', '{"a": ']], 'b}<|call|>'],
  ['no arguments', `${CALL}<|call|>`, [['f', '{}']], ''],
];

const PYTHONIC: Case[] = [
  ['cut in a string', '[f(a="b', [['f', '{"a": "b']], ''],
  ['cut in an escape', String.raw`[f(a="b\u00`, [['f', '{"a": "b']], ''],
  ['cut behind a string', '[f(a="b"', [['f', '{"a": "b']], ''],
  ['cut in a first number', '[f(a=12', [], '[f(a=12'],
  ['cut in a second number', '[f(a=1, b=12', [['f', '{"a": 1']], ''],
  ['cut in a list', '[f(a=[1, {"k": (2,', [['f', '{"a": [1, {"k": ']], ''],
  ['cut between calls', '[f(a=1), ', [['f', '{"a": 1}']], ''],
  ['cut before an argument', '[f(', [], '[f('],
  ['broken in a string', '[f(a="b\nc")]', [['f', '{"a": "b']], '\nc")]'],
  ['a broken escape', String.raw`[f(a='\xyz')]`, [['f', '{"a": "']], String.raw`\xyz')]`],
  ['broken in a list', '[f(a=[1, (2, x)])]', [['f', '{"a": [1']], ', (2, x)])]'],
  ['broken behind a string', '[f(a="b" + "c")]', [['f', '{"a": "b"']], '+ "c")]'],
  ['broken behind a string by a prefix', '[f(a="b" random)]', [['f', '{"a": "b']], 'random)]'],
  ['a broken second argument', '[f(a=1, b=c)]', [['f', '{"a": 1']], ', b=c)]'],
  ['an argument twice', '[f(a=1, a=2)]', [['f', '{"a": 1']], ', a=2)]'],
  ['a broken second call', '[f(a=1), g(b)]', [['f', '{"a": 1}']], ', g(b)]'],
  ['no arguments', '[f()', [['f', '{}']], ''],
  ['text', '[see (above)]', [], '[see (above)]'],
  ['text like a call of no tool', '[see(a="x") for more]', [], '[see(a="x") for more]'],
  ['a call of no tool', '[see(a="x")]', [['see', '{"a": "x"}']], ''],
];

describe.each<[ToolParserName, Case[]]>([
  ['hermes', HERMES],
  ['llama3_json', LLAMA],
  ['mistral', MISTRAL],
  ['harmony', HARMONY],
  ['pythonic', PYTHONIC],
])('%s', (toolParser, cases) => {
  it.each(cases)('%s', (_, text, calls, content) => {
    const output = parseEveryWay(begun(toolParser), text, seeded(1));
    expect(output.toolCalls.map((call) => [call.name, call.arguments])).toEqual(calls);
    expect(output.content).toBe(content);
  });
});

it('each piece of the arguments comes with the text that brings it', () => {
  const pieces = ['<tool_call>{"name": "f", "argu', 'ments": {"a', '": "b', ' c"}', '}</tool_call>', '\nyes'];
  expect(deltasOf(begun('hermes'), pieces)).toEqual([
    { toolCall: { index: 0, id: 'call-0', name: 'f' } },
    { toolCall: { index: 0, arguments: '{' } },
    { toolCall: { index: 0, arguments: '"a' } },
    { toolCall: { index: 0, arguments: '": "b' } },
    { toolCall: { index: 0, arguments: ' c"}' } },
    { content: '\nyes', at: 63 },
  ]);
});

it('a Python call comes piece by piece, in JSON', () => {
  const pieces = ['[f(te', 'xt="a\\', 'n', '\ud83d', '\udc4d', '", n=[1', ', (2', ',), {None: ', 'True}', '])', ']'];
  const deltas = deltasOf(begun('pythonic'), pieces);
  expect(deltas).toEqual([
    { toolCall: { index: 0, id: 'call-0', name: 'f' } },
    ...['{"text": "a', '\\n', '👍', '"', ', "n": [', '1', ', [2], {"null": ', 'true}', ']', '}'].map((json) => ({
      toolCall: { index: 0, arguments: json },
    })),
  ]);
});

it.each(['begun', 'complete'] as const)('strings of a Python call are the same in any cut: %s', (callTiming) => {
  const strings = [
    String.raw`'\ud83d\udc4d'`,
    String.raw`"\ud83d" '\udc4d'`,
    String.raw`'\ud83d'`,
    String.raw`'\101\1018\7x\0'`,
    String.raw`r'\'' u"\""`,
    `'''a''b"'''`,
    `"" '' ""`,
    String.raw`'\U0001F44D\x41\q'`,
  ];
  const values = ['👍', '👍', '\ud83d', 'AA8\x07x\0', `\\'"`, `a''b"`, '', '👍A\\q'];
  strings.forEach((string, i) => {
    const output = parseEveryWay({ ...begun('pythonic'), callTiming }, `[f(a=${string}, b=[${string}])]`, seeded(i));
    expect(output.content).toBe('');
    expect(JSON.parse(output.toolCalls[0]?.arguments ?? '')).toEqual({ a: values[i], b: [values[i]] });
  });
});

/** [format, what follows on a call, the content] */
const DROPPED: [ToolParserName, string, string][] = [
  ['hermes', '<tool_call>{"name":"g","arguments":{"a', ''],
  ['hermes', '<tool_call>{"name":"g","arguments":{"a": x}}</tool_call> so', ''],
  ['hermes', '<tool_call>{"name":"g","arguments":{}</tool_call> so', ''],
  ['hermes', '<tool_call>{"name":"g","arguments":{}}</tool_call> so', ' so'],
  [
    'hermes',
    '<tool_call>{"name":"g","arguments":[]}</tool_call> so',
    '<tool_call>{"name":"g","arguments":[]}</tool_call> so',
  ],
  ['llama3_json', '; {"name":"g","parameters":{"a": x}} so', ''],
  ['llama3_json', '; {"name":"g","parameters":{}} and {x}', ' and {x}'],
  ['llama3_json', ' and {x}', ' and {x}'],
  ['mistral', '[TOOL_CALLS]g{"a": x} so', ''],
  ['mistral', '[TOOL_CALLS][{"name":"g","arguments":{"a', ''],
  ['mistral', '[TOOL_CALLS]g{} so', ' so'],
  ['harmony', '<|start|>assistant<|channel|>commentary to=functions.g<|message|>{"a": x}<|call|> so', ''],
  ['pythonic', ', g(a="x", b=y)] so', ''],
  ['pythonic', ', g(a="x", b=1', ''],
  ['pythonic', ', g()] so', 'so'],
  ['pythonic', ', g(y)] so', ', g(y)] so'],
  ['pythonic', ', see(a="x") for more', ''],
];
const FIRST: Partial<Record<ToolParserName, string>> = {
  hermes: '<tool_call>{"name":"f","arguments":{}}</tool_call>',
  llama3_json: '{"name":"f","parameters":{}}',
  mistral: '[TOOL_CALLS]f{}',
  harmony: '<|channel|>commentary to=functions.f<|message|>{}<|call|>',
  pythonic: '[f()',
};

it.each(DROPPED)('%s: of several calls only the first is handed out, if asked: %s', (toolParser, more, content) => {
  for (const callTiming of ['complete', 'begun'] as const) {
    const options = optionsFor({ toolParser, callTiming, parallelToolCalls: false });
    const output = parseEveryWay(options, `${FIRST[toolParser]}${more}`, seeded(1));
    expect(output).toMatchObject({ content, toolCalls: [{ name: 'f', arguments: '{}' }] });
    expect(output.toolCalls).toHaveLength(1);
  }
});

it('an object of very many members is read once', () => {
  const members = Array.from({ length: 100_000 }, (_, i) => `"k${i}":${i}`).join(',');
  const [call] = deltasOf(begun('hermes'), [`<tool_call>{${members},"name":"f","arguments":{"a`]);
  expect(call).toEqual({ toolCall: { index: 0, id: 'call-0', name: 'f' } });
});

it('a long value before the arguments is read once', () => {
  const digits = '1'.repeat(200_000);
  for (const value of [digits, `"${digits}"`, `[${digits}]`]) {
    const text = `<tool_call>{"name":"f","x":${value},"arguments":{"a`;
    const [call] = deltasOf(begun('hermes'), piecesOf(text, 2));
    expect(call).toEqual({ toolCall: { index: 0, id: 'call-0', name: 'f' } });
  }
  const text = `<tool_call>{"name":"f","arguments":"{\\"a\\":${digits}}"}</tool_call>`;
  expect(deltasOf(begun('hermes'), piecesOf(text, 2))).toHaveLength(2);
}, 10_000);
