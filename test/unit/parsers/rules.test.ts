/** Grammar calls, ids, choice of parsers, and what the outcome means for a reply. */
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import {
  callIdFor,
  createOutputParser,
  needsSpecialTokens,
  TOOL_PARSER_NAMES,
} from '../../../src/control/sessions/parsers/create-parser.ts';
import { detectParsers } from '../../../src/control/sessions/parsers/detect-parsers.ts';
import { finishReason, messageContent } from '../../../src/control/sessions/parsers/reply-rules.ts';
import { hasSharedData, sharedText } from '../sessions/shared-data.ts';
import { callsIn, deltasOf, optionsFor, parse, parseEveryWay, seeded } from './support.ts';

describe('required', () => {
  const options = optionsFor({ tools: 'required' });

  it('sends name and first piece together, then pieces as they come', () => {
    const pieces = ['[{"name": "f", "para', 'meters": {"a"', ': 1}', '}, {"name":"g",', '"parameters":{}}', ']'];
    expect(deltasOf(options, pieces)).toEqual([
      { toolCall: { index: 0, id: 'call-0', name: 'f', arguments: '{' } },
      { toolCall: { index: 0, arguments: '"a"' } },
      { toolCall: { index: 0, arguments: ': 1}' } },
      { toolCall: { index: 1, id: 'call-1', name: 'g', arguments: '{' } },
      { toolCall: { index: 1, arguments: '}' } },
    ]);
  });

  it.each([
    ['cut arguments stay cut', '[{"name": "f", "parameters": {"a": "b', [['f', '{"a": "b']], ''],
    ['a cut second call is dropped', '[{"name":"f","parameters":{}}, {"name": "g"', [['f', '{}']], ''],
    ['a cut name is dropped', '[{"name": "f', [], ''],
    ['a cut key is dropped', '[{"name": "f", "param', [], ''],
    ['a bracket alone is dropped', ' [', [], ''],
    ['nothing', '', [], ''],
    ['no array', 'Hello', [], 'Hello'],
    ['an array of arrays', '[[1]]', [], '[[1]]'],
    ['no calls', '[]', [], '[]'],
    ['members in another order', '[{"parameters": {}, "name": "f"}]', [], '[{"parameters": {}, "name": "f"}]'],
    ['arguments that are no object', '[{"name": "f", "parameters": 1}]', [], '[{"name": "f", "parameters": 1}]'],
    ['text after', '[{"name":"f","parameters":{}}] x', [['f', '{}']], 'x'],
    ['other members after', '[{"name":"f","parameters":{},"id":[{}],"x":1}]', [['f', '{}']], ''],
  ])('%s', (_, text, calls, content) => {
    const output = parseEveryWay(options, text, seeded(1));
    expect(output.toolCalls.map((call) => [call.name, call.arguments])).toEqual(calls);
    expect(output.content).toBe(content);
  });
});

describe('named', () => {
  const options = optionsFor({ tools: { named: 'f' } });

  it('sends the output as arguments', () => {
    expect(deltasOf(options, ['{"a"', ': 1}'])).toEqual([
      { toolCall: { index: 0, id: 'call-0', name: 'f', arguments: '{"a"' } },
      { toolCall: { index: 0, arguments: ': 1}' } },
    ]);
  });

  it('is a call even with no text', () => {
    expect(parse(options, '').toolCalls).toEqual([{ id: 'call-0', name: 'f', arguments: '' }]);
  });
});

describe('calls of strict tools', () => {
  it.each([
    ['hermes', '<tool_call>{"name": "f", "arguments": {}}</tool_call>'],
    ['qwen3_coder', '<tool_call>\n<function=f>\n</function>\n</tool_call>'],
    ['qwen3_xml', '<tool_call>\n<function=f>\n</function>\n</tool_call>'],
    ['llama3_json', '{"name": "f", "parameters": {}}'],
    ['mistral', '[TOOL_CALLS]f{}'],
    ['pythonic', '[f()]'],
    ['harmony', '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>'],
  ] as const)('%s: stand in the format of the model', (toolParser, text) => {
    const options = { ...optionsFor({ tools: 'auto', toolParser }), constrained: true };
    expect(parse(options, text).toolCalls).toEqual([{ id: 'call-0', name: 'f', arguments: '{}' }]);
    expect(needsSpecialTokens(options)).toBe(true);
  });

  it('are content where the reply is constrained otherwise', () => {
    const text = '<|channel|>final<|message|>x';
    const options = { ...optionsFor({ tools: 'none', toolParser: 'harmony' }), constrained: true };
    expect(parse(options, text)).toMatchObject({ content: text, toolCalls: [] });
  });
});

describe('ids', () => {
  it.each([
    ['hermes', /^chatcmpl-tool-[0-9a-f]{32}$/],
    [null, /^chatcmpl-tool-[0-9a-f]{32}$/],
    ['mistral', /^[0-9A-Za-z]{9}$/],
    ['qwen3_coder', /^call_[0-9a-f]{24}$/],
    ['qwen3_xml', /^call_[0-9a-f]{24}$/],
  ] as const)('of %s', (toolParser, layout) => {
    const ids = new Set(Array.from({ length: 50 }, () => callIdFor(toolParser)));
    expect(ids.size).toBe(50);
    for (const id of ids) expect(id).toMatch(layout);
  });

  it('are random without a generator, one per call', () => {
    const { newCallId: _, ...options } = optionsFor({ toolParser: 'mistral' });
    const parser = createOutputParser(options);
    const deltas = [...parser.push('[TOOL_CALLS]f{}[TOOL_CALLS]g{}'), ...parser.finish()];
    const ids = deltas.flatMap((delta) => ('toolCall' in delta && delta.toolCall.id ? [delta.toolCall.id] : []));
    expect(new Set(ids).size).toBe(2);
    for (const id of ids) expect(id).toMatch(/^[0-9A-Za-z]{9}$/);
  });
});

it('auto needs a parser; without tools, text goes through untouched', () => {
  expect(() => createOutputParser(optionsFor())).toThrow(RangeError);
  for (const toolParser of TOOL_PARSER_NAMES.filter((name) => name !== 'harmony')) {
    const text = ' \n<tool_call>{"name": "f", "arguments": {}}</tool_call>[TOOL_CALLS]f{}';
    expect(parse(optionsFor({ tools: 'none', toolParser }), text)).toEqual({
      reasoning: '',
      content: text,
      toolCalls: [],
    });
  }
});

it.each([
  ['auto', 'hermes', null, true],
  ['none', 'hermes', 'qwen3', false],
  ['required', 'hermes', null, false],
  ['none', null, 'harmony', true],
] as const)('tools %s with %s and %s need special tokens: %s', (tools, toolParser, reasoningParser, needed) => {
  expect(needsSpecialTokens({ tools, toolParser, reasoningParser })).toBe(needed);
});

it.each([
  ['stop', 'auto', true, 'tool_calls'],
  ['stop', 'required', true, 'tool_calls'],
  ['stop', { named: 'f' }, true, 'stop'],
  ['stop', 'auto', false, 'stop'],
  ['stop', 'none', false, 'stop'],
  ['length', 'auto', true, 'length'],
  ['length', { named: 'f' }, true, 'length'],
  ['abort', 'required', true, 'abort'],
] as const)('finish: %s with tools %j, calls %s: %s', (engine, tools, hasCalls, reason) => {
  expect(finishReason(engine, tools, hasCalls)).toBe(reason);
});

it('content is null beside calls or thoughts alone, "" where a call was forced', () => {
  const call = { id: 'x', name: 'f', arguments: '{}' };
  expect(messageContent({ reasoning: '', content: '', toolCalls: [] }, 'none')).toBe('');
  expect(messageContent({ reasoning: '', content: '', toolCalls: [call] }, 'auto')).toBe(null);
  expect(messageContent({ reasoning: 'a', content: '', toolCalls: [] }, 'none')).toBe(null);
  expect(messageContent({ reasoning: '', content: 'a', toolCalls: [call] }, 'auto')).toBe('a');
  expect(messageContent({ reasoning: '', content: '', toolCalls: [call] }, 'required')).toBe('');
  expect(messageContent({ reasoning: 'a', content: '', toolCalls: [call] }, { named: 'f' })).toBe('');
});

describe('detection', () => {
  it('gives the starter model hermes and qwen3', () => {
    const path = new URL('../../../models/starter/tokenizer_config.json', import.meta.url);
    const config = JSON.parse(readFileSync(path, 'utf8')) as { chat_template: string };
    expect(detectParsers(config.chat_template)).toEqual({ tool: 'hermes', reasoning: 'qwen3' });
  });

  it('finds nothing in a plain template', () => {
    expect(detectParsers("{% for m in messages %}{{ m['content'] }}{% endfor %}")).toEqual({
      tool: null,
      reasoning: null,
    });
  });

  it('finds pythonic lists', () => {
    expect(detectParsers('[func_name1(params_name1=params_value1)]').tool).toBe('pythonic');
  });

  it.skipIf(!hasSharedData).each([
    ['HuggingFaceTB-SmolLM3-3B', null, 'qwen3'],
    ['NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use', 'hermes', null],
    ['NousResearch-Hermes-3-Llama-3.1-8B-tool_use', 'hermes', null],
    ['Qwen-QwQ-32B', 'hermes', 'qwen3'],
    ['Qwen-Qwen2.5-7B-Instruct', 'hermes', null],
    ['Qwen-Qwen3-0.6B', 'hermes', 'qwen3'],
    ['Qwen3-Coder', 'qwen3_coder', null],
    ['deepseek-ai-DeepSeek-R1-Distill-Qwen-32B', null, 'deepseek_r1'],
    ['google-gemma-2-2b-it', null, null],
    ['meta-llama-Llama-3.1-8B-Instruct', 'llama3_json', null],
    ['meta-llama-Llama-3.2-3B-Instruct', 'llama3_json', null],
    ['mistralai-Mistral-Nemo-Instruct-2407', 'mistral', null],
    ['openai-gpt-oss-120b', 'harmony', 'harmony'],
  ])('%s: %s, %s (needs ../shared/data)', (name, tool, reasoning) => {
    expect(detectParsers(sharedText('chat-templates', `${name}.jinja`))).toEqual({ tool, reasoning });
  });
});

it('keeps the first call only without parallel calls', () => {
  const text = '<tool_call>{"name":"f","arguments":{}}</tool_call><tool_call>{"name":"g","arguments":{}}</tool_call> x';
  const output = parseEveryWay(optionsFor({ toolParser: 'hermes', parallelToolCalls: false }), text, seeded(1));
  expect(callsIn(output)).toEqual([['f', {}]]);
  expect(output.content).toBe(' x');
});
