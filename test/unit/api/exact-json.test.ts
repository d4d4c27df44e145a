import { describe, expect, test } from 'vitest';
import { parseExactJson, withExactNumbers } from '../../../src/api/exact-json.ts';
import { writeJson } from '../../../src/control/json-numbers.ts';

const parse = (text: string, exact: string[] = ['seed']) => parseExactJson(text, new Set(exact));

const CALLING = JSON.stringify({
  role: 'assistant',
  name: 'someone',
  content: [{ type: 'text', text: 'Some words.' }],
  tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }],
});

/** Small deterministic generator. */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

function value(next: () => number, depth: number): unknown {
  const pick = Math.floor(next() * (depth > 3 ? 5 : 7));
  if (pick === 0) return null;
  if (pick === 1) return next() < 0.5;
  if (pick === 2) return (next() - 0.5) * 10 ** Math.floor(next() * 30);
  if (pick === 3) return Math.floor((next() - 0.5) * 2 ** 53);
  if (pick === 4) return text(next);
  const items = Array.from({ length: Math.floor(next() * 4) }, () => value(next, depth + 1));
  return pick === 5 ? items : Object.fromEntries(items.map((item) => [text(next), item]));
}

function text(next: () => number): string {
  const alphabet = [
    'a',
    '"',
    '\\',
    '\n',
    '[',
    '{',
    '9007199254740993',
    '-',
    '.',
    'é',
    '😀',
    '\u2028',
    '__proto__',
    '1e5',
  ];
  return Array.from({ length: Math.floor(next() * 6) }, () => alphabet[Math.floor(next() * alphabet.length)]).join('');
}

test('equals JSON.parse wherever doubles are exact', () => {
  const next = random(1);
  for (let round = 0; round < 3000; round++) {
    const json = JSON.stringify({ value: value(next, 0) }, null, round % 3);
    expect(parse(json), json).toEqual(JSON.parse(json));
  }
});

describe('integers', () => {
  test.each(['9007199254740993', '-9223372036854775809', '123456789012345678901234567890'])(
    '%s is exact where it counts',
    (digits) => {
      expect(parse(`{"seed":${digits},"other":${digits},"list":[${digits}]}`)).toEqual({
        seed: BigInt(digits),
        other: Number(digits),
        list: [Number(digits)],
      });
    },
  );
  test('safe ones and fractions stay numbers', () => {
    expect(parse('{"seed":9007199254740991}')).toEqual({ seed: 9007199254740991 });
    expect(parse('{"seed":1e20,"a":9007199254740993.5}')).toEqual({ seed: 1e20, a: 9007199254740993.5 });
  });
  test('a name deeper down is not the field', () => {
    expect(parse('{"a":{"seed":9007199254740993}}')).toEqual({ a: { seed: 9007199254740992 } });
  });
  test('digits without end cost no quadratic time', () => {
    const started = performance.now();
    expect(parse(`{"seed":${'9'.repeat(2_000_000)}}`)).toEqual({ seed: Infinity });
    expect(performance.now() - started).toBeLessThan(5000);
  });
  test('an own __proto__ key stays a key', () => {
    const parsed = parse('{"__proto__":{"seed":9007199254740993},"x":9007199254740993}') as object;
    expect(Object.hasOwn(parsed, '__proto__')).toBe(true);
    expect(Object.getPrototypeOf(parsed)).toBe(Object.prototype);
  });
  test('a string cannot pose as an integer', () => {
    expect(parse('{"seed":"int64:0:9007199254740993","x":9007199254740993}')).toEqual({
      seed: 'int64:0:9007199254740993',
      x: 9007199254740992,
    });
  });
});

describe('what a template or a grammar is shown', () => {
  const shown = (text: string) => {
    const raw = parse(text);
    return writeJson(withExactNumbers(raw as object, raw));
  };

  test.each(['tools', 'documents', 'chat_template_kwargs', 'response_format', 'structured_outputs'])(
    'keeps its numbers in %s, once the body has been checked',
    (name) => {
      const text = `{"${name}":{"a":[1.0,9007199254740993,0.5]},"temperature":1.0,"seed":1}`;
      expect(parse(text)).toEqual(JSON.parse(text));
      expect(shown(text)).toBe(`{"${name}":{"a":[1.0,9007199254740993,0.5]},"temperature":1,"seed":1}`);
    },
  );

  test.each([
    ['as it is where nothing is lost', '{"tools":[0.5,1],"a":1.0}', '{"tools":[0.5,1],"a":1}'],
    ['of several fields of a name the last', '{"tools":[1.0],"tools":[2.0]}', '{"tools":[2.0]}'],
    ['of several fields of a name the last, plain', '{"tools":[1.0],"tools":[2]}', '{"tools":[2]}'],
    ['under an escaped name too', '{"tools":[1.0],"to\\u006fls":[2.0]}', '{"tools":[2.0]}'],
    ['under an escaped name too, plain', '{"tools":[1.0],"to\\u006fls":[2]}', '{"tools":[2]}'],
    ['not deeper down', '{"a":{"tools":[1.0]}}', '{"a":{"tools":[1]}}'],
    ['not in a text', '{"a":",\\"tools\\":[1.0]","tools":["1.0"]}', '{"a":",\\"tools\\":[1.0]","tools":["1.0"]}'],
    ['with space around it', ' { "a" : 1 , "tools" : [ 1.0 ] , "b" : 2.0 } ', '{"a":1,"tools":[1.0],"b":2}'],
    ['not where it is a number itself', '{"tools":1.0}', '{"tools":1}'],
  ])('%s', (_name, text, written) => {
    expect(shown(text)).toBe(written);
  });

  test('a float that no number holds is refused by the field, not shown as null', () => {
    for (const number of ['1e400', '-1E999', '1.5e309', `1${'0'.repeat(400)}.5`]) {
      const text = `{"model": "m", "response_format": {"schema": {"const": [${number}]}}}`;
      expect(() => parse(text)).toThrow(
        expect.objectContaining({
          param: 'response_format',
          message: expect.stringMatching(/^response_format: -?1.* is larger than a number may be\.$/),
        }),
      );
    }
    expect(parse('{"tools": [1e308, 1e-400, "1e400"], "other": [1e400]}')).toMatchObject({ other: [Infinity] });
    expect(() => parse('{"tools": [-]}')).toThrow('not valid JSON');
  });

  test('an integer without end is refused', () => {
    expect(() => parse(`{"tools":[${'9'.repeat(5000)}]}`)).toThrow('an integer has more than 4300 digits');
  });
});

test.each([
  '{',
  '[1,]',
  '{"a":01}',
  '{"a":-}',
  '"\\x"',
  '{"a":1 2}',
  '00000000000000000001',
  '"abc',
  '{"a":"\u0001"}',
  '',
])('%j is refused as JSON.parse does', (text) => expect(() => parse(text)).toThrow('not valid JSON'));

// In quadratic time these would take minutes, and the test its time-out.
test.each(['"":', '"tools": 1.0 '])('keys without commas cost no quadratic time: %s', (key) => {
  expect(() => parse(`{${key.repeat(1_000_000)}`)).toThrow('not valid JSON');
});

describe('many different keys', () => {
  const numbered = (count: number, item: (index: number) => string) =>
    Array.from({ length: count }, (_, at) => item(at)).join(',');

  // JSON.parse takes ten seconds and more for a body of them.
  test.each([
    ['of one object', (count: number) => `{"x":{${numbered(count, (at) => `"name ${at}" \n: 1`)}}}`],
    ['of as many objects', (count: number) => `[${numbered(count, (at) => `{"k${at}":1}`)}]`],
    ['that are numbers', (count: number) => `{"logit_bias":{${numbered(count, (at) => `"${at}":1`)}}}`],
  ])('%s are refused beyond a bound', (_name, json) => {
    expect(() => parse(json(40_000))).toThrow('The body has more than 32768 different keys.');
    expect(() => parse(json(32_000))).not.toThrow();
  });

  test('the same ones, and other texts, are no different keys', () => {
    expect(() => parse(`[${numbered(100_000, () => '{"role":"user","content":"a"}')}]`)).not.toThrow();
    expect(() => parse(`[${numbered(100_000, (at) => `"text ${at}"`)}]`)).not.toThrow();
  });
});

describe('many values', () => {
  const repeat = (count: number, item: string) => Array<string>(count).fill(item).join(',');

  test.each([
    ['containers', `{"messages":[{"x":[${repeat(600_000, '[]')}]}]}`],
    ['numbers within a message', `{"messages":[{"x":[${repeat(1_100_000, '1')}]}]}`],
    ['texts', `{"prompt":[${repeat(1_100_000, '"a"')}]}`],
    ['members', `{"x":{${Array.from({ length: 1_100_000 }, (_, i) => `"${i}":1`).join(',')}}}`],
  ])('%s beyond a bound are refused', (_name, json) => {
    expect(() => parse(json)).toThrow(/more than 1048576 values/);
  });

  test.each([
    ['as many messages with calls as a chat may have', `{"messages":[${repeat(16_384, CALLING)}]}`],
    ['lists of ids', `{"prompt":[[${repeat(600_000, '1')}],[${repeat(600_000, '23')}]],"x":null}`],
    ['commas in texts', `{"messages":[{"content":"${repeat(2_000_000, '[')}"}]}`],
  ])('%s are taken', (_name, json) => {
    expect(parse(json)).toEqual(JSON.parse(json));
  });
});
