/** Formats with markup of their own: qwen3_coder, pythonic, harmony. */
import { describe, expect, it } from 'vitest';
import { callsIn, deltasOf, optionsFor, parse, parseEveryWay, piecesOf, seeded, tool } from './support.ts';

describe('qwen3_coder', () => {
  const types = tool('f', {
    text: { type: 'string' },
    whole: { type: 'integer' },
    number: { type: 'number' },
    flag: { type: 'boolean' },
    object: { type: 'object' },
    list: { type: 'array', items: { type: 'string' } },
    maybe: { type: ['integer', 'null'] },
    either: { anyOf: [{ type: 'boolean' }, { type: 'number' }, { type: 'string' }] },
    listed: { anyOf: [{ enum: ['a', 'b'] }, { type: 'boolean' }] },
    perhaps: { type: ['boolean', 'null'] },
    one: { const: 5 },
    // As a request's numbers come, which keep what was written.
    some: { enum: [new Number(1), 2n ** 60n, true, null] },
    letters: { enum: ['1', '2', null] },
    pairs: { enum: [[1], [2]] },
    python: { type: 'dict' },
    strange: { type: 'colour' },
    bare: {},
  });
  const options = optionsFor({ toolParser: 'qwen3_coder', toolDefinitions: [types] });
  const call = (parameters: string, name = 'f') =>
    `<tool_call>\n<function=${name}>\n${parameters}</function>\n</tool_call>`;
  const parameter = (key: string, value: string) => `<parameter=${key}>\n${value}\n</parameter>\n`;

  it.each([
    ['text', 'Rome', 'Rome'],
    ['text', '12', '12'],
    ['text', ' two\n\nlines\n', ' two\n\nlines\n'],
    ['text', '<b>&amp; "x" \\ </b>', '<b>&amp; "x" \\ </b>'],
    ['text', 'null', null],
    ['whole', '12', 12],
    ['whole', ' -007 ', -7],
    ['whole', 'twelve', 'twelve'],
    ['whole', '1.5', '1.5'],
    ['number', '1.5', 1.5],
    ['number', '5.0', 5],
    ['number', '+.5', 0.5],
    ['number', '1e3', 1000],
    ['number', '1_0', '1_0'],
    ['flag', 'true', true],
    ['flag', 'True', true],
    ['flag', 'false', false],
    ['flag', 'yes', false],
    ['flag', '1', true],
    ['flag', '0', false],
    ['object', '{"a": [1, {"b": null}]}', { a: [1, { b: null }] }],
    ['object', "{'a': True, 'b': (1, None)}", { a: true, b: [1, null] }],
    ['object', '{broken', '{broken'],
    ['list', '["a", "b"]', ['a', 'b']],
    ['list', "['a']", ['a']],
    ['list', 'a, b', 'a, b'],
    ['maybe', '3', 3],
    ['maybe', 'Null', null],
    ['maybe', 'None', null],
    ['perhaps', ' None ', null],
    ['object', 'None', null],
    ['text', 'None', 'None'],
    ['either', 'None', 'None'],
    ['bare', 'None', 'None'],
    ['one', '5', 5],
    ['some', '2', 2],
    ['some', 'true', true],
    ['some', 'x', 'x'],
    ['letters', '1', '1'],
    ['pairs', '[1]', [1]],
    ['either', 'true', true],
    ['either', '2', 2],
    ['either', '1', 1],
    ['either', 'two', 'two'],
    ['listed', 'b', 'b'],
    ['python', '{}', {}],
    ['strange', '1', '1'],
    ['bare', '1', '1'],
    ['unknown', '1', '1'],
    ['constructor', '1', '1'],
    ['__proto__x', '1', '1'],
    ['text', '', ''],
    ['object', 'NULL', null],
  ])('converts %s: %j', (key, value, expected) => {
    const output = parseEveryWay(options, call(parameter(key, value)), seeded(1));
    expect(callsIn(output)).toEqual([['f', { [key]: expected }]]);
    expect(output.content).toBe('');
  });

  it.each([
    ['place', '{"city": "Rome"}', { city: 'Rome' }],
    ['places', '[{"city": "Rome"}]', [{ city: 'Rome' }]],
    ['maybe', '{"city": "Rome"}', { city: 'Rome' }],
    ['maybe', 'null', null],
    ['colour', '7', '7'],
    ['count', '7', 7],
    ['lost', '7', '7'],
    ['round', '7', '7'],
  ])('follows references of pydantic’s nested models and enums: %s %j', (key, value, expected) => {
    const parameters = {
      $defs: {
        Place: { type: 'object', properties: { city: { type: 'string' } } },
        Colour: { type: 'string', enum: ['7', '8'] },
        Places: { type: 'array', items: { $ref: '#/$defs/Place' } },
        'Count/~': { $ref: '#/$defs/Size' },
        Size: { type: 'integer' },
        Round: { $ref: '#/$defs/Round' },
      },
      properties: {
        place: { $ref: '#/$defs/Place', description: 'where' },
        places: { $ref: '#/$defs/Places' },
        maybe: { anyOf: [{ $ref: '#/$defs/Place' }, { type: 'null' }] },
        colour: { $ref: '#/$defs/Colour' },
        count: { $ref: '#/$defs/Count~1~0' },
        lost: { $ref: '#/$defs/constructor' },
        round: { $ref: '#/$defs/Round' },
      },
    };
    const definition = { type: 'function', function: { name: 'f', parameters } };
    const nested = optionsFor({ toolParser: 'qwen3_coder', toolDefinitions: [definition] });
    expect(callsIn(parse(nested, call(parameter(key, value))))).toEqual([['f', { [key]: expected }]]);
  });

  it.each([
    ['whole', '123456789012345678901234567890', '123456789012345678901234567890'],
    ['number', '+12345678901234567890.5', '12345678901234567890.5'],
    ['number', '1.e400', '1e400'],
    ['number', '-00.50E-3', '-0.50E-3'],
    ['number', '7.', '7'],
  ])('keeps all digits of a number: %s %j', (key, value, json) => {
    const output = parse(options, call(parameter(key, value)));
    expect(output.toolCalls[0]?.arguments).toBe(`{"${key}": ${json}}`);
  });

  const ab = { text: 'a', bare: 'b' };
  it.each([
    ['plain text', 'Hello <function> <tool_', [], 'Hello <function> <tool_'],
    ['no parameters', call(''), [['f', {}]], ''],
    ['a tool that is not known', call(parameter('whole', '1'), 'g'), [['g', { whole: '1' }]], ''],
    ['text around', `Hm.\n${call('')}\nSo.`, [['f', {}]], 'Hm.\n\nSo.'],
    [
      'two calls',
      `${call(parameter('text', 'a'))}\n${call('', 'g')}`,
      [
        ['f', { text: 'a' }],
        ['g', {}],
      ],
      '',
    ],
    [
      'no line breaks',
      '<tool_call><function=f><parameter=text>a</parameter></function></tool_call>',
      [['f', { text: 'a' }]],
      '',
    ],
    ['no <tool_call>', '<function=f><parameter=text>a</parameter></function></tool_call>', [['f', { text: 'a' }]], ''],
    ['no tags around', '<function=f><parameter=text>a</parameter></function>\n', [['f', { text: 'a' }]], ''],
    [
      'no </parameter>',
      '<tool_call><function=f><parameter=text>\na\n<parameter=bare>\nb\n</function></tool_call>',
      [['f', ab]],
      '',
    ],
    [
      'no </function>',
      '<tool_call><function=f><parameter=text>a</parameter></tool_call> x',
      [['f', { text: 'a' }]],
      ' x',
    ],
    ['no end at all', '<tool_call><function=f><parameter=text>\na', [['f', { text: 'a' }]], ''],
    [
      'no end between calls',
      `<tool_call><function=f><tool_call><function=g><function=h>`,
      [
        ['f', {}],
        ['g', {}],
        ['h', {}],
      ],
      '',
    ],
    ['a cut key', '<tool_call><function=f><parameter=te', [['f', {}]], ''],
    ['half a closing tag at the end', '<function=f></function></tool_c', [['f', {}]], ''],
    [
      'a value with other tags',
      call(parameter('text', '<tool_call><function=x></b>')),
      [['f', { text: '<tool_call><function=x></b>' }]],
      '',
    ],
    ['no function', 'a <tool_call>{"name": 1}</tool_call>', [], 'a <tool_call>{"name": 1}</tool_call>'],
    ['a cut name', ' <tool_call>\n<function=f', [], ' <tool_call>\n<function=f'],
    ['no name', '<function=></function>', [], '<function=></function>'],
    ['a long name', `<function=${'f'.repeat(300)}>`, [], `<function=${'f'.repeat(300)}>`],
  ])('%s', (_, text, calls, content) => {
    const output = parseEveryWay(options, text, seeded(1));
    expect(callsIn(output)).toEqual(calls);
    expect(output.content).toBe(content);
  });

  it('hands a call out parameter by parameter', () => {
    const pieces = [
      '<tool_call><function=f>',
      parameter('whole', '1'),
      parameter('text', 'a'),
      '</function></tool_call>',
    ];
    expect(deltasOf({ ...options, toolParser: 'qwen3_xml' }, pieces)).toEqual([
      { toolCall: { index: 0, id: 'call-0', name: 'f' } },
      { toolCall: { index: 0, arguments: '{"whole": 1' } },
      { toolCall: { index: 0, arguments: ', "text": "a"' } },
      { toolCall: { index: 0, arguments: '}' } },
    ]);
  });

  it.each([[[]], [[null, 1, {}, { function: null }, { function: { name: 'f', parameters: [] } }]]])(
    'takes tools without schemas as they are: %j',
    (toolDefinitions) => {
      expect(callsIn(parse({ ...options, toolDefinitions }, call(parameter('whole', '1'))))).toEqual([
        ['f', { whole: '1' }],
      ]);
    },
  );
});

describe('pythonic', () => {
  const options = optionsFor({ toolParser: 'pythonic' });

  it.each([
    ['plain text', 'Hello [f(a=1)]', [], 'Hello [f(a=1)]'],
    ['one call', '[get_weather(city="Rome")]', [['get_weather', { city: 'Rome' }]], ''],
    [
      'two calls',
      '[f(a=1), g()]',
      [
        ['f', { a: 1 }],
        ['g', {}],
      ],
      '',
    ],
    [
      'space and commas',
      ' [ f ( a = 1 , ) ,\n g( ), ]\n',
      [
        ['f', { a: 1 }],
        ['g', {}],
      ],
      '',
    ],
    ['between tags', '<|python_start|>[f()]<|python_end|>', [['f', {}]], ''],
    ['a name with dots', '[a.b-c(x=None)]', [['a.b-c', { x: null }]], ''],
    [
      'literals',
      '[f(a=True, b=[1, (2.5, -3)], c={"k": {\'l\': False}})]',
      [['f', { a: true, b: [1, [2.5, -3]], c: { k: { l: false } } }]],
      '',
    ],
    [
      'brackets and quotes in strings',
      `[f(a="])}'", b='it\\'s', c='''"'x''', d="")]`,
      [['f', { a: "])}'", b: "it's", c: `"'x`, d: '' }]],
      '',
    ],
    [
      'no closing bracket at the end',
      '[f(a="x"), g()',
      [
        ['f', { a: 'x' }],
        ['g', {}],
      ],
      '',
    ],
    ['text after', '[f()] ok', [['f', {}]], 'ok'],
    ['a comma at the end', '[f(), ', [['f', {}]], ''],
    ['a call, then a broken one', '[f(a=1), g(b=c)] ok', [['f', { a: 1 }]], ', g(b=c)] ok'],
    ['a call, then a cut one', '[f(), g(a="x", b=1', [['f', {}]], ', g(a="x", b=1'],
    ['a call, then something else', '[f() or g()]', [['f', {}]], ' or g()]'],
    ['a call of no tool', '[nothing(a=1)]', [['nothing', { a: 1 }]], ''],
    ['a call of no tool, cut', '[nothing(a=1)', [['nothing', { a: 1 }]], ''],
    ['a call of no tool, then a broken one', '[nothing() , f(a=b)]', [['nothing', {}]], ' , f(a=b)]'],
    ['a call, then text like one', '[f(), see(a=1) for more]', [['f', {}]], ', see(a=1) for more]'],
    ['an argument named by a letter of two units', '[f(𠮷=1)]', [['f', { 𠮷: 1 }]], ''],
  ])('%s', (_, text, calls, content) => {
    const output = parseEveryWay(options, text, seeded(1));
    expect(callsIn(output)).toEqual(calls);
    expect(output.content).toBe(content);
  });

  it.each([
    '',
    ' ',
    '[]',
    '[1]',
    '[f]',
    '[see (this)]',
    '[Note: f(a=1)]',
    '[f(1)](http://x)',
    '[see(a=1) for details]',
    ' [ see() or f(a=1)]',
    '[f(a=b)]',
    '[f(a=1, a=2)]',
    '[f(**{"a": 1})]',
    '[f(a=f"{x}")]',
    '[f(a="x)]',
    "[f(a='it's')]",
    '[f(a="x\ny")]',
    '[f(a=1',
    '[f(a=[1)]',
    '[f(a=1+1)]',
    '[f(,)]',
    '[f(a=1,,)]',
    '[,]',
    '[1f()]',
    '[f(1a=1)]',
    '[f(a)]',
    '[f(a=.)]',
    '<|python_start|>print(1)<|python_end|>',
    `[f(a=${'['.repeat(100)}${']'.repeat(100)})]`,
  ])('%j: all is content', (text) => {
    const output = parseEveryWay(options, text, seeded(1));
    expect(output).toEqual({ reasoning: '', content: text, toolCalls: [] });
  });

  it('streams text that begins with a bracket as soon as it is no call', () => {
    expect(deltasOf(options, ['[No', 'te: ', 'x]'])).toEqual([
      { content: '[Note: ', at: 0 },
      { content: 'x]', at: 7 },
    ]);
  });
});

describe('harmony', () => {
  const options = optionsFor({ toolParser: 'harmony', reasoningParser: 'harmony' });
  const analysis = '<|channel|>analysis<|message|>Hm.<|end|>';
  const final = '<|start|>assistant<|channel|>final<|message|>Hi.';
  const call = '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>';

  it.each([
    ['thoughts and an answer', analysis + final, 'Hm.', 'Hi.', []],
    ['an answer alone', `${final.slice(18)}<|return|>`, '', 'Hi.', []],
    ['thoughts alone', '<|channel|>analysis<|message|>Hm', 'Hm', '', []],
    ['a call', analysis + call, 'Hm.', '', [['f', { a: 1 }]]],
    ['a call first', ' to=functions.f<|channel|>commentary json<|message|>{}', '', '', [['f', {}]]],
    ['a call without a body', '<|channel|>commentary to=functions.f<|message|><|call|>', '', '', [['f', {}]]],
    [
      'two calls',
      call + call,
      '',
      '',
      [
        ['f', { a: 1 }],
        ['f', { a: 1 }],
      ],
    ],
    ['a call that a channel ends', call.slice(0, -8) + final.slice(18), '', 'Hi.', [['f', { a: 1 }]]],
    ['a call without an end', call.slice(0, -8) + final, '', 'Hi.', [['f', { a: 1 }]]],
    [
      'marks in strings',
      '<|channel|>commentary to=functions.f<|message|>{"a": "<|call|>{"}',
      '',
      '',
      [['f', { a: '<|call|>{' }]],
    ],
    ['a preamble', '<|channel|>commentary<|message|>I look.<|end|>' + call, '', 'I look.', [['f', { a: 1 }]]],
    ['a tool of the model itself', '<|channel|>analysis to=python code<|message|>1+1<|call|>', '1+1', '', []],
    ['a cut header', `${analysis}<|start|>assis`, 'Hm.', '', []],
    ['no harmony', 'Hello.', '', 'Hello.', []],
    ['no harmony, like a header', 'to=you, assistant', '', 'to=you, assistant', []],
    ['no harmony, long', `assistant ${'x'.repeat(600)}`, '', `assistant ${'x'.repeat(600)}`, []],
    ['broken arguments', call.replace('{"a"', '{a'), '', call.replace('{"a"', '{a'), []],
    ['cut arguments', analysis + call.slice(0, -10), 'Hm.', call.slice(0, -10), []],
    ['text after the arguments', call.replace('<|call|>', ' x'), '', call.replace('<|call|>', ' x'), []],
  ])('%s', (_, text, reasoning, content, calls) => {
    const output = parseEveryWay(options, text, seeded(1));
    expect({ ...output, toolCalls: callsIn(output) }).toEqual({ reasoning, content, toolCalls: calls });
  });

  it('says where content stands, however many marks and thoughts lie between', () => {
    const preamble = '<|channel|>commentary<|message|>I look.<|end|>';
    const text = preamble + `<|start|>assistant${analysis}` + final;
    for (const size of [1, 4, text.length]) {
      const deltas = deltasOf(options, piecesOf(text, size)).filter((delta) => 'content' in delta);
      const places = deltas.flatMap(({ content, at = NaN }) => Array.from(content, (_, index) => at + index));
      const expected = ['I look.', 'Hi.'].flatMap((part) => Array.from(part, (_, index) => text.indexOf(part) + index));
      expect(places).toEqual(expected);
    }
    // White space before a call that never comes stands where it was.
    const spaces = '<|channel|>final<|message|> <|end|><|start|>assistant<|channel|>final<|message|>Hi';
    expect(deltasOf(options, [spaces])).toEqual([
      { content: ' ', at: spaces.indexOf(' ') },
      { content: 'Hi', at: spaces.indexOf('Hi') },
    ]);
  });

  it('leaves calls in the content where they were not asked for', () => {
    const output = parseEveryWay({ ...options, tools: 'none' }, analysis + call, seeded(1));
    expect(output).toEqual({ reasoning: 'Hm.', content: '{"a": 1}', toolCalls: [] });
  });
});
