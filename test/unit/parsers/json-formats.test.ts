/** Formats whose calls are JSON: hermes, llama3_json, mistral. */
import { describe, expect, it } from 'vitest';
import { callsIn, deltasOf, optionsFor, parse, parseEveryWay, seeded } from './support.ts';

type Case = [what: string, text: string, calls: [string, unknown][], content: string];

function check(toolParser: 'hermes' | 'llama3_json' | 'mistral', cases: Case[]): void {
  it.each(cases)('%s', (_, text, calls, content) => {
    const output = parseEveryWay(optionsFor({ toolParser }), text, seeded(1));
    expect(callsIn(output)).toEqual(calls);
    expect(output.content).toBe(content);
    expect(output.reasoning).toBe('');
  });
}

const CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>';
const ROME: [string, unknown] = ['get_weather', { city: 'Rome' }];

describe('hermes', () => {
  check('hermes', [
    ['plain text', 'Hello,\n  <b>world</b> {"a": 1} ', [], 'Hello,\n  <b>world</b> {"a": 1} '],
    ['nothing but space', ' \n ', [], ' \n '],
    ['one call', CALL, [ROME], ''],
    ['two calls', `${CALL}\n${CALL}`, [ROME, ROME], ''],
    ['calls without space', CALL.replaceAll('\n', '').repeat(2), [ROME, ROME], ''],
    ['content before', `Let me see.\n${CALL}`, [ROME], 'Let me see.\n'],
    ['space before', `\n\n${CALL}`, [ROME], ''],
    ['text after', `${CALL}\nDone.`, [ROME], '\nDone.'],
    ['space after', `${CALL}\n`, [ROME], ''],
    ['text between', `${CALL} and ${CALL}`, [ROME, ROME], ' and '],
    [
      'boolean and number arguments',
      '<tool_call>{"name": "f", "arguments": {"a": true, "b": false, "c": -1.5e3, "d": null}}</tool_call>',
      [['f', { a: true, b: false, c: -1500, d: null }]],
      '',
    ],
    ['empty arguments', '<tool_call>{"name": "f", "arguments": {}}</tool_call>', [['f', {}]], ''],
    ['null arguments', '<tool_call>{"name": "f", "arguments": null}</tool_call>', [['f', {}]], ''],
    ['empty string', '<tool_call>{"name": "f", "arguments": ""}</tool_call>', [['f', {}]], ''],
    [
      'JSON in a string',
      String.raw`<tool_call>{"name":"f","arguments":"{\"a\": [1]}"}</tool_call>`,
      [['f', { a: [1] }]],
      '',
    ],
    ['arguments first', '<tool_call>{"arguments": {"a": {}}, "name": "f"}</tool_call>', [['f', { a: {} }]], ''],
    [
      'braces and tags in strings',
      String.raw`<tool_call>{"name": "f", "arguments": {"a": "}{</tool_call>\"}", "b": {"c": ["[", "{"]}}}</tool_call>`,
      [['f', { a: '}{</tool_call>"}', b: { c: ['[', '{'] } }]],
      '',
    ],
    ['no closing tag at the end', CALL.replace('\n</tool_call>', ''), [ROME], ''],
    ['half a closing tag at the end', CALL.slice(0, -4), [ROME], ''],
    ['an opening tag instead of a closing one', CALL.replace('</tool_call>', '') + CALL, [ROME, ROME], ''],
    ['half an opening tag at the end', 'x <tool_', [], 'x <tool_'],
    ['a name twice: the later one', '<tool_call>{"name":"g","name":"f","arguments":{}}</tool_call>', [['f', {}]], ''],
  ]);

  it.each([
    ['invalid JSON', '<tool_call>{"name": "f", "arguments": {a: 1}}</tool_call>'],
    ['a lacking brace', '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>'],
    ['a brace too many', '<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>'],
    ['no name', '<tool_call>{"arguments": {}}</tool_call>'],
    ['an empty name', '<tool_call>{"name": "", "arguments": {}}</tool_call>'],
    ['a name that is no string', '<tool_call>{"name": 1, "arguments": {}}</tool_call>'],
    ['no arguments', '<tool_call>{"name": "f"}</tool_call>'],
    ['no arguments, and half a closing tag', '<tool_call>{"name": "f"}</tool_'],
    ['no arguments, and an opening tag', '<tool_call>{"name": "f"}<tool_call>'],
    ['arguments that are no object', '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'],
    ['a string that holds no object', '<tool_call>{"name": "f", "arguments": "Rome"}</tool_call>'],
    ['an array', '<tool_call>[{"name": "f", "arguments": {}}]</tool_call>'],
    ['text before the JSON', '<tool_call>call {"name": "f", "arguments": {}}</tool_call>'],
    ['NaN', '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'],
    ['a raw line break in a string', '<tool_call>{"name": "f", "arguments": {"a": "\n"}}</tool_call>'],
    ['a cut call', ' \n<tool_call>{"name": "f", "arguments": {"a": "b'],
    ['nothing after the tag', 'x<tool_call>'],
    ['a broken call before a good one', `<tool_call>{}</tool_call>${CALL}`],
    ['a broken call, then a tag for its end', `<tool_call>{}<tool_call>${CALL}`],
  ])('%s: all is content', (_, text) => {
    expect(parseEveryWay(optionsFor({ toolParser: 'hermes' }), text, seeded(1))).toEqual({
      reasoning: '',
      content: text,
      toolCalls: [],
    });
  });

  it('calls that were complete stand before a broken one', () => {
    const output = parseEveryWay(optionsFor({ toolParser: 'hermes' }), `${CALL}\n<tool_call>{</tool_call>`, seeded(1));
    expect(callsIn(output)).toEqual([ROME]);
    expect(output.content).toBe('\n<tool_call>{</tool_call>');
  });

  it("passes the model's own JSON on, digits and all", () => {
    const json = '{ "a":12345678901234567890.10,\t"b" : "\\u00e4" }';
    const output = parse(
      optionsFor({ toolParser: 'hermes' }),
      `<tool_call>{"name":"f","arguments":${json}}</tool_call>`,
    );
    expect(output.toolCalls[0]?.arguments).toBe(json);
  });

  it('streams text at once, and holds back no more than what may be a tag', () => {
    const pieces = [
      'Hel',
      'lo <',
      'tool',
      's> ',
      '<tool_call>{"name": "f", ',
      '"arguments": {}}',
      '</tool_call>',
      ' bye',
    ];
    expect(deltasOf(optionsFor({ toolParser: 'hermes' }), pieces)).toEqual([
      { content: 'Hel', at: 0 },
      { content: 'lo ', at: 3 },
      { content: '<tools> ', at: 6 },
      { toolCall: { index: 0, id: 'call-0', name: 'f' } },
      { toolCall: { index: 0, arguments: '{}' } },
      { content: ' bye', at: 67 },
    ]);
  });

  it('keeps the state of two choices apart', () => {
    const options = optionsFor({ toolParser: 'hermes' });
    expect(parse(options, CALL.slice(0, 20)).toolCalls).toEqual([]);
    expect(callsIn(parse(options, CALL))).toEqual([ROME]);
  });
});

describe('llama3_json', () => {
  const rome = '{"name": "get_weather", "parameters": {"city": "Rome"}}';
  check('llama3_json', [
    ['plain text', 'Hello {x}, {"a', [], 'Hello {x}, {"a'],
    ['one call', rome, [ROME], ''],
    ['one call after the tag', `<|python_tag|>${rome}`, [ROME], ''],
    ['the tag and space', `<|python_tag|>\n ${rome}\n`, [ROME], ''],
    ['arguments by the other name', rome.replace('parameters', 'arguments'), [ROME], ''],
    ['arguments by both names: the first', '{"name":"f","arguments":{"a":1},"parameters":{}}', [['f', { a: 1 }]], ''],
    ['no object by the first name', '{"name":"f","arguments":"{}","parameters":{"a":1}}', [['f', { a: 1 }]], ''],
    ['a name behind the arguments too', '{"name":"f","parameters":{},"name":"g"}', [['f', {}]], ''],
    ['two calls', `${rome}; ${rome}`, [ROME, ROME], ''],
    ['two tagged calls', `<|python_tag|>${rome};<|python_tag|>${rome}`, [ROME, ROME], ''],
    ['text around', `I call ${rome}; and that was it.`, [ROME], 'I call ; and that was it.'],
    ['half a tag after a call', `${rome}; <|python_`, [ROME], '; <|python_'],
    ['boolean and empty values', '{"name":"f","parameters":{"a":true,"b":{}}}', [['f', { a: true, b: {} }]], ''],
    ['empty parameters', '{"name": "f", "parameters": {}}', [['f', {}]], ''],
    ['a string of JSON', String.raw`{"name":"f","parameters":"{\"a\":1}"}`, [['f', { a: 1 }]], ''],
    ['braces in strings', '{"name":"f","parameters":{"a":"}}{"}}', [['f', { a: '}}{' }]], ''],
    ['a broken object before', `{"a" ${rome}`, [ROME], '{"a" '],
    ['braces in a row', `{{${rome}`, [ROME], '{{'],
    [
      'a tag before code',
      '<|python_tag|>brave_search.call(query="x")',
      [],
      '<|python_tag|>brave_search.call(query="x")',
    ],
    ['an object that is no call', `{"answer": 42} ${rome}`, [], `{"answer": 42} ${rome}`],
    ['a name alone', '{"name": "Bob"}', [], '{"name": "Bob"}'],
    ['a cut call', `<|python_tag|> ${rome.slice(0, -1)}`, [], `<|python_tag|> ${rome.slice(0, -1)}`],
  ]);
});

describe('mistral', () => {
  const rome = '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Rome"}}]';
  check('mistral', [
    ['plain text', 'Hello [TOOL] [1]', [], 'Hello [TOOL] [1]'],
    ['an array of one', rome, [ROME], ''],
    ['an array of two', `[TOOL_CALLS] [${rome.slice(13, -1)}, ${rome.slice(13, -1)}]`, [ROME, ROME], ''],
    ['content before', `Sure. ${rome}`, [ROME], 'Sure. '],
    ['text after', `${rome} ok`, [ROME], ' ok'],
    ['no closing bracket at the end', rome.slice(0, -1), [ROME], ''],
    ['one object', '[TOOL_CALLS]{"name": "f", "arguments": {"a": false}}', [['f', { a: false }]], ''],
    ['a name', '[TOOL_CALLS]get_weather{"city": "Rome"}', [ROME], ''],
    ['names', '[TOOL_CALLS]get_weather{"city": "Rome"}[TOOL_CALLS]f{}', [ROME, ['f', {}]], ''],
    ['a name and [ARGS]', '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}', [ROME], ''],
    ['a name, an id and [ARGS]', '[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{"a": 1}', [['f', { a: 1 }]], ''],
    ['braces and tags in strings', '[TOOL_CALLS]f{"a": "}[TOOL_CALLS]{"}', [['f', { a: '}[TOOL_CALLS]{' }]], ''],
    ['a call in an array, then a broken one', `${rome.slice(0, -1)}, {"name": ""}] ok`, [ROME], ', {"name": ""}] ok'],
    ['a call in an array, then a cut one', `${rome.slice(0, -1)}, {"name": "g"`, [ROME], ', {"name": "g"'],
    ['a call in an array, then no other', `${rome.slice(0, -1)} is it`, [ROME], ' is it'],
    ['a comma at the end', `${rome.slice(0, -1)} , `, [ROME], ''],
    ['a comma before the closing bracket', `${rome.slice(0, -1)},]`, [ROME], ',]'],
    ['a call, then a broken one', '[TOOL_CALLS]f{}[TOOL_CALLS]g{x}', [['f', {}]], '[TOOL_CALLS]g{x}'],
  ]);

  it.each([
    '[TOOL_CALLS]',
    '[TOOL_CALLS][]',
    '[TOOL_CALLS][{"name": "f"}]',
    '[TOOL_CALLS][',
    '[TOOL_CALLS][{"name": ""}, {"name": "f", "arguments": {}}]',
    '[TOOL_CALLS][[{"name": "f", "arguments": {}}]]',
    '[TOOL_CALLS]f',
    '[TOOL_CALLS]f{"a": 1',
    '[TOOL_CALLS]f{a}',
    '[TOOL_CALLS]f[1]',
    '[TOOL_CALLS]two words{}',
    `[TOOL_CALLS]${'f'.repeat(300)}{}`,
    '[TOOL_CALLS]f[TOOL_CALLS]g{}',
    ' [TOOL_CALLS]{"a": 1}',
  ])('%s: all is content', (text) => {
    const output = parseEveryWay(optionsFor({ toolParser: 'mistral' }), text, seeded(1));
    expect(output).toEqual({ reasoning: '', content: text, toolCalls: [] });
  });
});
