/** However an output is cut, it means the same: for every format, with generated and with broken outputs. */
import { describe, expect, it } from 'vitest';
import type { ReasoningParserName, ToolParserName } from '../../../src/control/sessions/parsers/create-parser.ts';
import type { CallTiming } from '../../../src/control/sessions/parsers/call-reader.ts';
import { JsonScanner, scanJson } from '../../../src/control/sessions/parsers/json-scanner.ts';
import type { ParsedOutput } from '../../../src/control/sessions/parsers/output-parser.ts';
import * as generate from './generate.ts';
import { callsIn, optionsFor, parse, parseEveryWay, pick, seeded } from './support.ts';

const SAMPLES = 250;

const TIMINGS: CallTiming[] = ['complete', 'begun'];

/**
 * Calls that were handed out as they began: all that are complete are among them, and what broke off is the beginning
 * of an object: as written, or in JSON.
 */
function expectBegun(begun: ParsedOutput, complete: ParsedOutput, text: string, asWritten = true): void {
  const found = begun.toolCalls.map(({ name, arguments: json }) => JSON.stringify([name, json]));
  let at = -1;
  for (const { name, arguments: json } of complete.toolCalls) {
    at = found.indexOf(JSON.stringify([name, json]), at + 1);
    expect(at, text).toBeGreaterThanOrEqual(0);
  }
  for (const call of begun.toolCalls) {
    expect(call.arguments, text).toMatch(/^\{/);
    if (scanJson(call.arguments) !== null) continue;
    if (asWritten) expect(text, text).toContain(call.arguments);
    else expect(isCut(call.arguments), text).toBe(true);
  }
}

function isCut(json: string): boolean {
  const scanner = new JsonScanner();
  scanner.feed(json, 0);
  return scanner.status === 'open';
}

const FORMATS: [string, ToolParserName, (random: () => number) => generate.Sample][] = [
  ['hermes', 'hermes', generate.hermes],
  ['llama3_json', 'llama3_json', generate.llama3Json],
  ['mistral, arrays', 'mistral', generate.mistralArray],
  ['mistral, names', 'mistral', generate.mistralNamed],
  ['qwen3_coder', 'qwen3_coder', generate.qwen3Coder],
  ['pythonic', 'pythonic', generate.pythonic],
];

describe.each(FORMATS)('%s', (_, toolParser, sample) => {
  const options = optionsFor({ toolParser });

  it.each(TIMINGS)('finds what was generated, cut anywhere, calls %s', (callTiming) => {
    const random = seeded(1);
    for (let i = 0; i < SAMPLES; i++) {
      const { text, calls, content } = sample(random);
      const output = parseEveryWay({ ...options, callTiming }, text, random);
      expect(callsIn(output), text).toEqual(calls);
      expect(output.content, text).toBe(content);
    }
  });

  it('agrees with itself on broken outputs, and returns them whole where it finds no call', () => {
    const random = seeded(2);
    let withoutCalls = 0;
    for (let i = 0; i < SAMPLES; i++) {
      const text = generate.broken(random, sample(random).text);
      const output = parseEveryWay(options, text, random);
      for (const call of output.toolCalls) expect(JSON.parse(call.arguments), text).toBeTypeOf('object');
      if (output.toolCalls.length > 0) continue;
      expect(output.content).toBe(text);
      withoutCalls++;
    }
    expect(withoutCalls).toBeGreaterThan(5);
  });

  it('agrees with itself on broken outputs whose calls are handed out as they begin', () => {
    const random = seeded(11);
    for (let i = 0; i < SAMPLES; i++) {
      const text = generate.broken(random, sample(random).text);
      const begun = parseEveryWay({ ...options, callTiming: 'begun' }, text, random);
      expectBegun(begun, parseEveryWay(options, text, random), text, toolParser !== 'pythonic');
    }
  });

  it('keeps the first of several calls only, if asked', () => {
    const random = seeded(3);
    for (let i = 0; i < 50; i++) {
      const { text, calls, content } = sample(random);
      const output = parseEveryWay({ ...options, parallelToolCalls: false }, text, random);
      expect(callsIn(output), text).toEqual(calls.slice(0, 1));
      expect(output.content).toBe(content);
    }
  });

  it('leaves the same content in a stream and a whole answer behind the first call, if asked to keep that', () => {
    const random = seeded(12);
    let dropped = 0;
    for (let i = 0; i < SAMPLES; i++) {
      const text = generate.broken(random, sample(random).text);
      const [whole, begun] = TIMINGS.map((callTiming) =>
        parseEveryWay({ ...options, callTiming, parallelToolCalls: false }, text, random),
      );
      const first = whole?.toolCalls[0];
      // Where the first call of the stream broke off, they differ.
      if (!first || begun?.toolCalls[0]?.arguments !== first.arguments) continue;
      expect(begun, text).toEqual(whole);
      if (parse(options, text).toolCalls.length > 1) dropped++;
    }
    expect(dropped).toBeGreaterThan(10);
  });

  it.each(['qwen3', 'deepseek_r1'] satisfies ReasoningParserName[])('reads on after the thoughts of %s', (name) => {
    const random = seeded(4);
    for (let i = 0; i < 60; i++) {
      const { text, calls, content } = sample(random);
      const thought = pick(random, ['', '\nI call <tool> 1 < 2.\n', '{"name": "x"}', '[f(a=1)]', '<tool_call>{}']);
      const isOpen = random() < 0.5;
      const reasoningOptions = {
        ...options,
        reasoningParser: name,
        promptReasoning: isOpen ? 'open' : 'none',
      } as const;
      const output = parseEveryWay(reasoningOptions, `${isOpen ? '' : '<think>'}${thought}</think>${text}`, random);
      expect(output.reasoning).toBe(thought);
      expect(callsIn(output), text).toEqual(calls);
      expect(output.content).toBe(content);
    }
  });
});

describe('harmony', () => {
  const options = optionsFor({ toolParser: 'harmony', reasoningParser: 'harmony' });

  it.each(TIMINGS)('finds what was generated, cut anywhere, calls %s', (callTiming) => {
    const random = seeded(5);
    for (let i = 0; i < SAMPLES; i++) {
      const { text, calls, content, reasoning } = generate.harmony(random);
      const output = parseEveryWay({ ...options, callTiming }, text, random);
      expect({ ...output, toolCalls: callsIn(output) }, text).toEqual({ reasoning, content, toolCalls: calls });
    }
  });

  it('agrees with itself on broken outputs', () => {
    const random = seeded(6);
    for (let i = 0; i < SAMPLES; i++) {
      const text = generate.broken(random, generate.harmony(random).text);
      const output = parseEveryWay(options, text, random);
      for (const call of output.toolCalls) expect(JSON.parse(call.arguments), text).toBeTypeOf('object');
      expectBegun(parseEveryWay({ ...options, callTiming: 'begun' }, text, random), output, text);
    }
  });
});

describe('required', () => {
  const options = optionsFor({ tools: 'required' });
  const sample = (random: () => number) => {
    const array = generate.mistralArray(random).calls.map(([name, parameters]) => ({ name, parameters }));
    return { array, text: generate.jsonText(random, array) };
  };

  it('finds what was generated, cut anywhere', () => {
    const random = seeded(7);
    for (let i = 0; i < SAMPLES; i++) {
      const { array, text } = sample(random);
      const output = parseEveryWay(options, text, random);
      expect(callsIn(output), text).toEqual(array.map(({ name, parameters }) => [name, parameters]));
      expect(output.content).toBe('');
    }
  });

  it('agrees with itself on broken outputs, and where it finds no call returns them whole, or nothing of those that were cut', () => {
    const random = seeded(8);
    for (let i = 0; i < SAMPLES; i++) {
      const text = generate.broken(random, sample(random).text);
      const output = parseEveryWay(options, text, random);
      if (output.toolCalls.length > 0) continue;
      if (output.content === '') expect(isCut(text), text).toBe(true);
      else expect(output.content).toBe(text);
    }
  });
});

it('named: the whole output is the arguments, cut anywhere', () => {
  const random = seeded(9);
  for (let i = 0; i < SAMPLES; i++) {
    const data = generate.object(random);
    const output = parseEveryWay(optionsFor({ tools: { named: 'f' } }), generate.jsonText(random, data), random);
    expect(output).toMatchObject({ reasoning: '', content: '' });
    expect(callsIn(output)).toEqual([['f', data]]);
  }
});

describe.each(['qwen3', 'deepseek_r1'] satisfies ReasoningParserName[])('%s', (reasoningParser) => {
  it('agrees with itself on broken outputs, and loses no text but its tags', () => {
    const random = seeded(10);
    for (let i = 0; i < SAMPLES; i++) {
      const thought = generate.words(random);
      const content = generate.words(random);
      const text = generate.broken(random, `<think>${thought}</think>${content}`);
      const promptReasoning = pick(random, ['none', 'open'] as const);
      const output = parseEveryWay(optionsFor({ tools: 'none', reasoningParser, promptReasoning }), text, random);
      const letters = (from: string) => from.replace(/<think>|<\/think>/g, '').trim();
      expect(letters(output.reasoning + output.content)).toBe(letters(text));
    }
  });
});
