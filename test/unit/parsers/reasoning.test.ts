import { describe, expect, it } from 'vitest';
import { createOutputParser } from '../../../src/control/sessions/parsers/create-parser.ts';
import { promptReasoning, promptReasoningAtEnd } from '../../../src/control/sessions/parsers/reasoning.ts';
import { callsIn, deltasOf, optionsFor, parse, parseEveryWay, seeded } from './support.ts';

const CODER_CALL = '<tool_call>\n<function=f>\n</function>\n</tool_call>';

describe.each(['qwen3', 'deepseek_r1'] as const)('%s', (reasoningParser) => {
  const plain = optionsFor({ tools: 'none', reasoningParser });

  it.each([
    ['none', '<think>\nHm.\n</think>\n\nHi.', '\nHm.\n', '\n\nHi.'],
    ['none', ' \n<think>Hm.</think>Hi.', 'Hm.', 'Hi.'],
    ['none', '<think></think>Hi.', '', 'Hi.'],
    ['none', '<think>Hm.</think>', 'Hm.', ''],
    ['none', '<think>Hm. {"a": 1}', 'Hm. {"a": 1}', ''],
    ['none', '<think>Hm.</thin', 'Hm.</thin', ''],
    ['none', '{"a": 1}', '', '{"a": 1}'],
    ['none', ' Hi. <think>no</think>', '', ' Hi. <think>no</think>'],
    ['none', 'Hi.</think>', '', 'Hi.</think>'],
    ['none', '<thi', '', '<thi'],
    ['none', '<think>a</think>b<think>c</think>', 'a', 'b<think>c</think>'],
    ['open', '\nHm.\n</think>Hi.', '\nHm.\n', 'Hi.'],
    ['open', '<think>Hm.</think>Hi.', 'Hm.', 'Hi.'],
    ['open', 'Hm.', 'Hm.', ''],
    ['open', '</think>Hi.', '', 'Hi.'],
    ['open', 'a <think> b</think>Hi.', 'a <think> b', 'Hi.'],
    ['closed', 'Hi.', '', 'Hi.'],
    ['closed', '<think>Hm.</think>Hi.', '', '<think>Hm.</think>Hi.'],
  ] as const)('prompt %s: %j', (promptState, text, reasoning, content) => {
    const output = parseEveryWay({ ...plain, promptReasoning: promptState }, text, seeded(1));
    expect(output).toEqual({ reasoning, content, toolCalls: [] });
  });

  it('gives the rest of a delta that ends the thoughts to the tool parser', () => {
    const options = optionsFor({ reasoningParser, toolParser: 'hermes', promptReasoning: 'open' });
    const text = ['Hm.', ' So:</think>\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'];
    expect(deltasOf(options, text)).toEqual([
      { reasoning: 'Hm.' },
      { reasoning: ' So:' },
      { toolCall: { index: 0, id: 'call-0', name: 'f' } },
      { toolCall: { index: 0, arguments: '{}' } },
    ]);
  });

  it('leaves a call of JSON inside the thoughts', () => {
    const options = optionsFor({ reasoningParser, toolParser: 'hermes' });
    const call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>';
    const output = parseEveryWay(options, `<think>${call}</think>${call}`, seeded(1));
    expect(output.reasoning).toBe(call);
    expect(callsIn(output)).toEqual([['f', {}]]);
  });

  it('drops thoughts that are not asked for, and still knows where they are', () => {
    const parser = createOutputParser({ ...plain, includeReasoning: false });
    const seen = ['<think>', 'Hm.', '</think>', 'Hi.'].map((piece) => [parser.push(piece), parser.inReasoning]);
    expect(seen).toEqual([
      [[], true],
      [[], true],
      [[], false],
      [[{ content: 'Hi.', at: 18 }], false],
    ]);
  });

  it('is in the thoughts from the start where the prompt opened them', () => {
    expect(createOutputParser({ ...plain, promptReasoning: 'open' }).inReasoning).toBe(true);
    expect(createOutputParser(plain).inReasoning).toBe(false);
    expect(createOutputParser({ ...plain, promptReasoning: 'closed' }).inReasoning).toBe(false);
  });

  it('reads required and named calls behind the thoughts', () => {
    const required = optionsFor({ reasoningParser, tools: 'required' });
    const output = parse(required, '<think>a</think>[{"name": "f", "parameters": {"b": 1}}]');
    expect(output.reasoning).toBe('a');
    expect(callsIn(output)).toEqual([['f', { b: 1 }]]);
    const named = optionsFor({ reasoningParser, tools: { named: 'g' } });
    expect(callsIn(parse(named, '<think>a</think>{"b": 1}'))).toEqual([['g', { b: 1 }]]);
  });
});

it.each([
  ['qwen3', 'Hm.', [['f', {}]]],
  ['deepseek_r1', `Hm.${CODER_CALL}`, []],
] as const)(
  '%s: a parameter-tag call without </think> ends the thoughts or not',
  (reasoningParser, reasoning, calls) => {
    const options = optionsFor({ reasoningParser, toolParser: 'qwen3_coder', promptReasoning: 'open' });
    const output = parseEveryWay(options, `Hm.${CODER_CALL}`, seeded(1));
    expect({ ...output, toolCalls: callsIn(output) }).toEqual({ reasoning, content: '', toolCalls: calls });
  },
);

it('markup that ends the thoughts reaches the parser behind whole', () => {
  const options = optionsFor({ reasoningParser: 'qwen3', tools: 'none', promptReasoning: 'open' });
  const output = parseEveryWay(options, `Hm.${CODER_CALL}`, seeded(1));
  expect(output).toEqual({ reasoning: 'Hm.', content: CODER_CALL, toolCalls: [] });
});

it.each([
  ['', 'none'],
  ['<think>\n', 'open'],
  ['<think>\n\n</think>\n\n', 'closed'],
  ['<think>a</think>b<think>c', 'open'],
  ['Hello', 'none'],
])('a reply that begins with %j has its thoughts %s', (text, state) => {
  expect(promptReasoning(text)).toBe(state);
});

it.each([
  ['user: <think>\nassistant:', 'none'],
  ['user: hi\nassistant: <think>\n', 'open'],
  ['assistant: <think>\n\n</think>\n\n', 'closed'],
])('a prompt that ends with %j has its thoughts %s', (prompt, state) => {
  expect(promptReasoningAtEnd(prompt)).toBe(state);
});
