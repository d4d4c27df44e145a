/** Structured output against a server with random weights: whatever such a model would rather say, the answer keeps to its language. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Ajv2020 } from 'ajv/dist/2020.js';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { IM_END } from '../fixtures/byte-tokenizer.ts';
import { temporaryDirectory, writeRandomModel } from '../fixtures/tiny-model.ts';
import { API_KEY, ApiServer, waitFor } from './server.ts';

/** Shows the marks of hermes calls and of Qwen's thoughts; `thinking` opens these in the prompt. */
const TEMPLATE =
  "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}{% endfor %}" +
  "{% if tools %}<tool_call>{% endif %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}" +
  "{% if thinking == 'open' %}{{ '<think>\\n' }}{% elif thinking == 'closed' %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}";

type Body = Record<string, unknown>;

const directory = temporaryDirectory();
const ajv = new Ajv2020({ strict: false });
let server: ApiServer;
let client: OpenAI;

beforeAll(async () => {
  writeRandomModel(directory.path, { num_hidden_layers: 1, hidden_size: 64, intermediate_size: 64 });
  const path = join(directory.path, 'tokenizer_config.json');
  const config = JSON.parse(readFileSync(path, 'utf8')) as object;
  writeFileSync(path, JSON.stringify({ ...config, chat_template: TEMPLATE }));
  server = await ApiServer.start({
    flags: ['--model', directory.path, '--served-model-name', 'm', '--max-logprobs', '5'],
  });
  client = new OpenAI({ apiKey: API_KEY, baseURL: `${server.url}/v1`, maxRetries: 0 });
}, 120_000);
afterAll(async () => {
  await server?.stop();
  directory.remove();
});

const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'Go.' }];
const closed = { chat_template_kwargs: { thinking: 'closed' } };

/** By the real client; fields that it does not know pass through it. */
function chat(body: Body): Promise<OpenAI.ChatCompletion> {
  const whole = { model: 'm', messages, max_completion_tokens: 80, ...closed, ...body };
  return client.chat.completions.create(
    whole as unknown as OpenAI.ChatCompletionCreateParamsNonStreaming & { model: '' },
  );
}

async function refused(body: Body): Promise<{ status: number; message: string; param: string | null }> {
  const response = await server.post('/v1/chat/completions', { messages, max_tokens: 20, ...closed, ...body });
  const { error } = (await response.json()) as { error: { message: string; param: string | null } };
  return { status: response.status, ...error };
}

const schemaFormat = (schema: unknown) => ({
  response_format: { type: 'json_schema', json_schema: { name: 'answer', strict: true, schema } },
});

const SCHEMAS: Record<string, object> = {
  object: {
    type: 'object',
    properties: { a: { type: 'integer', minimum: 3 }, b: { type: 'string' }, c: { enum: ['x', null, 2] } },
    required: ['a', 'b'],
    additionalProperties: false,
  },
  recursive: {
    $defs: {
      node: { type: 'object', properties: { v: { type: 'number' }, next: { $ref: '#/$defs/node' } }, required: ['v'] },
    },
    $ref: '#/$defs/node',
  },
  list: { type: 'array', items: { type: 'string', pattern: '^[a-f]+$' }, minItems: 2 },
  choice: {
    oneOf: [
      { type: 'integer', multipleOf: 7 },
      { type: 'object', required: ['k'], minProperties: 2 },
    ],
  },
  anything: {},
};

describe('documents', () => {
  test.each(Object.keys(SCHEMAS))('%s: complete and valid, however little room there is', async (name) => {
    const schema = SCHEMAS[name] ?? {};
    for (const max of [24, 40, 80]) {
      const { choices } = await chat({
        ...schemaFormat(schema),
        max_completion_tokens: max,
        n: 3,
        seed: max,
        temperature: 1.3,
      });
      for (const choice of choices) {
        const value: unknown = JSON.parse(choice.message.content ?? '');
        expect(ajv.validate(schema, value), `${name}: ${choice.message.content}`).toBe(true);
        // A number at the top may go on until the limit; everything else ends by itself.
        if (typeof value === 'object') expect(choice.finish_reason).toBe('stop');
      }
    }
  });

  test('a stream adds up to the same document, and a seed repeats it', async () => {
    const body = { ...schemaFormat(SCHEMAS['object']), seed: 5, temperature: 1 };
    const whole = (await chat(body)).choices[0]?.message.content;
    const stream = (await chat({ ...body, stream: true })) as unknown as AsyncIterable<OpenAI.ChatCompletionChunk>;
    let text = '';
    for await (const chunk of stream) text += chunk.choices[0]?.delta.content ?? '';
    expect(text).toBe(whole);
    expect((await chat(body)).choices[0]?.message.content).toBe(whole);
  });

  test('json_object is an object', async () => {
    const { choices } = await chat({ response_format: { type: 'json_object' }, max_completion_tokens: 20 });
    const value: unknown = JSON.parse(choices[0]?.message.content ?? '');
    expect(typeof value === 'object' && value !== null && !Array.isArray(value)).toBe(true);
  });

  test('too little room for the shortest answer: it is cut', async () => {
    const { choices } = await chat({ structured_outputs: { regex: 'a{30}' }, max_completion_tokens: 10 });
    expect(choices[0]).toMatchObject({ finish_reason: 'length', message: { content: 'a'.repeat(10) } });
  });
});

describe('structured_outputs', () => {
  const content = async (structured_outputs: Body, more: Body = {}) =>
    (await chat({ structured_outputs, ...more })).choices[0]?.message.content ?? '';

  test('choice, with log-probabilities of the untouched model', async () => {
    const body = { structured_outputs: { choice: ['red', 'green', 'blue'] }, logprobs: true, top_logprobs: 2 };
    const { choices } = await chat({ ...body, n: 4, temperature: 1 });
    for (const choice of choices) {
      expect(['red', 'green', 'blue']).toContain(choice.message.content);
      for (const entry of choice.logprobs?.content ?? []) {
        expect(entry.logprob).toBeGreaterThanOrEqual(-9999);
        expect(entry.top_logprobs).toHaveLength(2);
      }
    }
  });

  test('what ended the answer is shown where special tokens are', async () => {
    const ended = { include_stop_str_in_output: true, temperature: 0, logit_bias: { [IM_END]: 100 } };
    const choice = ['a', 'ab'];
    expect(await content({ choice }, ended)).toBe('a');
    expect(await content({ choice }, { ...ended, skip_special_tokens: false })).toBe('a<|im_end|>');
  });

  test('regex, grammar and compact JSON', async () => {
    expect(await content({ regex: '[a-c]{3,5}!' })).toMatch(/^[a-c]{3,5}!$/);
    expect(await content({ grammar: 'root ::= "<" ("ab" | "cd")+ ">"' })).toMatch(/^<(ab|cd)+>$/);
    expect(await content({ grammar: 'start: "x" | "y" start' })).toMatch(/^y*x$/);
    const compact = await content({ json: SCHEMAS['object'] as Body, disable_any_whitespace: true });
    expect(compact).toBe(JSON.stringify(JSON.parse(compact)));
    // No 1.000, though that is the same number.
    const same = { type: 'array', items: { enum: [1, -2.5] }, minItems: 12, maxItems: 12 };
    const numbers = await content({ json: same, disable_any_whitespace: true });
    expect(numbers).toBe(JSON.stringify(JSON.parse(numbers)));
  });

  test.each([
    '"structured_outputs":{"json":{"const":9007199254740993}}',
    '"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"const":9007199254740993}}}',
    '"tool_choice":{"type":"function","function":{"name":"f"}},"tools":[{"type":"function","function":{"name":"f",' +
      '"parameters":{"required":["x"],"additionalProperties":false,"properties":{"x":{"const":9007199254740993}}}}}]',
  ])('the digits of a large integer: %s', async (field) => {
    const body = `${JSON.stringify({ messages, max_tokens: 80, ...closed }).slice(0, -1)},${field}}`;
    const headers = { 'content-type': 'application/json' };
    const response = await server.call('/v1/chat/completions', { method: 'POST', headers, body });
    const { choices } = (await response.json()) as OpenAI.ChatCompletion;
    expect(JSON.stringify(choices?.[0]?.message)).toContain('9007199254740993');
  });

  test('structural tags, both layouts', async () => {
    const schema = {
      type: 'object',
      properties: { n: { type: 'integer' } },
      required: ['n'],
      additionalProperties: false,
    };
    const tag = { begin: '<f>', content: { type: 'json_schema', json_schema: schema }, end: '</f>' };
    const format = {
      type: 'triggered_tags',
      triggers: ['<'],
      tags: [{ type: 'tag', ...tag }],
      at_least_one: true,
      stop_after_first: true,
    };
    const legacy = { type: 'structural_tag', structures: [{ begin: '<f>', schema, end: '</f>' }], triggers: ['<'] };
    for (const response_format of [{ type: 'structural_tag', format }, legacy]) {
      const { choices } = await chat({
        response_format,
        logit_bias: { '60': 100, '102': 100 },
        temperature: 1,
        seed: 1,
      });
      const text = choices[0]?.message.content ?? '';
      const inside = /<f>([\s\S]*?)<\/f>/.exec(text)?.[1];
      expect(ajv.validate(schema, JSON.parse(inside ?? 'null')), text).toBe(true);
    }
  });

  test('text completions are held to it too', async () => {
    const response = await server.post('/v1/completions', {
      prompt: 'x',
      structured_outputs: { choice: ['yes', 'no'] },
    });
    const { choices } = (await response.json()) as { choices: { text: string; finish_reason: string }[] };
    expect(['yes', 'no']).toContain(choices[0]?.text);
    expect(choices[0]?.finish_reason).toBe('stop');
  });

  test('where nothing may come the answer ends', async () => {
    const ends = { finish_reason: 'stop', stop_reason: 'no_token_allowed' };
    const letters = { structured_outputs: { regex: '[ab]+' }, allowed_token_ids: [99] };
    expect((await chat(letters)).choices[0]).toMatchObject({ ...ends, message: { content: '' } });
    const half = { structured_outputs: { choice: ['abc'] }, bad_words: ['b'] };
    expect((await chat(half)).choices[0]).toMatchObject({ ...ends, message: { content: 'a' } });
    expect((await chat(schemaFormat({ not: {} }))).choices[0]).toMatchObject(ends);
  });

  test('ends before min_tokens, with ignore_eos, and at a stop string like any other', async () => {
    expect(await content({ choice: ['ab'] }, { min_tokens: 9, ignore_eos: true })).toBe('ab');
    const { choices } = await chat({ structured_outputs: { regex: 'ab{20}' }, stop: ['bbb'] });
    expect(choices[0]).toMatchObject({ finish_reason: 'stop', stop_reason: 'bbb', message: { content: 'a' } });
  });
});

const properties = { city: { type: 'string' }, days: { type: 'integer', minimum: 1 }, unit: { enum: ['C', 'F'] } };
const parameters = { type: 'object', properties, required: ['city', 'unit'], additionalProperties: false };
const tools = [
  { type: 'function', function: { name: 'weather', parameters } },
  {
    type: 'function',
    function: {
      name: 'say "hi"',
      parameters: {
        $defs: { t: { type: 'array', items: { type: 'boolean' } } },
        properties: { t: { $ref: '#/$defs/t' } },
        required: ['t'],
      },
    },
  },
  { type: 'function', function: { name: 'noop' } },
] as const;

function checkCall(name: string, text: string): void {
  const value: unknown = JSON.parse(text);
  const tool = tools.find((one) => one.function.name === name);
  expect(tool, name).toBeDefined();
  const schema =
    tool && 'parameters' in tool.function ? tool.function.parameters : { type: 'object', maxProperties: 0 };
  expect(ajv.validate(schema, value), `${name} ${text}`).toBe(true);
}

describe('calls that must come', () => {
  test.each(['closed', 'none', 'open'])('required, thoughts %s: calls with valid arguments', async (thinking) => {
    for (const [parallel, seed] of [
      [true, 1],
      [false, 2],
      [true, 3],
    ] as const) {
      const body = {
        tools,
        tool_choice: 'required',
        parallel_tool_calls: parallel,
        seed,
        temperature: 1.2,
        max_completion_tokens: 150,
        chat_template_kwargs: { thinking },
      };
      const [choice] = (await chat(body)).choices;
      const calls = choice?.message.tool_calls ?? [];
      expect(choice).toMatchObject({ finish_reason: 'tool_calls', message: { content: '' } });
      expect(calls.length).toBeGreaterThan(0);
      if (!parallel) expect(calls).toHaveLength(1);
      for (const call of calls) if (call.type === 'function') checkCall(call.function.name, call.function.arguments);
      const stream = (await chat({ ...body, stream: true })) as unknown as AsyncIterable<OpenAI.ChatCompletionChunk>;
      const joined: string[] = [];
      for await (const chunk of stream)
        for (const call of chunk.choices[0]?.delta.tool_calls ?? [])
          joined[call.index] = (joined[call.index] ?? '') + (call.function?.arguments ?? '');
      expect(joined).toEqual(calls.map((call) => (call.type === 'function' ? call.function.arguments : '')));
    }
  });

  test('named: the arguments alone, finish stop', async () => {
    const body = {
      tools,
      tool_choice: { type: 'function', function: { name: 'weather' } },
      n: 3,
      seed: 4,
      temperature: 1,
    };
    for (const choice of (await chat(body)).choices) {
      expect(choice).toMatchObject({ finish_reason: 'stop', message: { content: '' } });
      const [call] = choice.message.tool_calls ?? [];
      if (call?.type !== 'function') throw new Error('no call');
      checkCall(call.function.name, call.function.arguments);
    }
  });
});

describe('thoughts', () => {
  test.each(['open', 'none'])('%s: the language begins behind them', async (thinking) => {
    const body = {
      structured_outputs: { choice: ['red', 'blue'] },
      chat_template_kwargs: { thinking },
      seed: 3,
      temperature: 1,
    };
    const [choice] = (await chat(body)).choices;
    expect(['red', 'blue']).toContain(choice?.message.content);
    if (thinking === 'open') expect((choice?.message as { reasoning?: string }).reasoning).not.toBe('');
    const [hidden] = (await chat({ ...body, include_reasoning: false })).choices;
    expect(['red', 'blue']).toContain(hidden?.message.content);
  });
});

const spaced = (kind: Body): Body => ({ structured_outputs: { ...kind, whitespace_pattern: '(' } });
describe('refused by name, and the next request works', () => {
  test.each<[string, Body, string, string]>([
    ['a broken regex', { structured_outputs: { regex: '[.*' } }, 'structured_outputs', 'missing ]'],
    ['a broken grammar', { structured_outputs: { grammar: 'root ::= (' } }, 'structured_outputs', 'cannot be used'],
    ['broken white space', spaced({ regex: 'a' }), 'structured_outputs', 'whitespace_pattern cannot be used: pattern'],
    ['a broken schema', schemaFormat({ type: 'nothing' }), 'response_format', 'cannot be used'],
    ['a back-reference', { structured_outputs: { regex: '(a)\\1' } }, 'structured_outputs', 'a back-reference'],
    [
      'unevaluatedProperties',
      schemaFormat({ type: 'object', unevaluatedProperties: false }),
      'response_format',
      'unevaluatedProperties',
    ],
    ['a remote $ref', schemaFormat({ $ref: 'http://169.254.169.254/x' }), 'response_format', '$ref'],
    ['a file $ref', schemaFormat({ $ref: 'file:///etc/passwd' }), 'response_format', '$ref'],
    [
      'left recursion',
      { structured_outputs: { grammar: 'root ::= a\na ::= b "x"\nb ::= a' } },
      'structured_outputs',
      'left recursion',
    ],
    [
      'a grammar without a text',
      { structured_outputs: { grammar: 'root ::= "x" root' } },
      'structured_outputs',
      'empty language',
    ],
    ['two kinds', { structured_outputs: { regex: 'a', choice: ['a'] } }, 'structured_outputs', 'only use one kind'],
    [
      'a named tool beside them',
      { structured_outputs: { regex: 'a' }, tools, tool_choice: { type: 'function', function: { name: 'noop' } } },
      'structured_outputs',
      'not both',
    ],
    [
      'no schema',
      { response_format: { type: 'json_schema' } },
      'response_format',
      "'json_schema' field must be provided",
    ],
    ['an empty choice', { structured_outputs: { choice: [] } }, 'structured_outputs', 'choice'],
    [
      'a malformed tag',
      { structured_outputs: { structural_tag: '{"format": 3}' } },
      'structured_outputs',
      'structural_tag',
    ],
    ['a text that is no schema', { structured_outputs: { json: '{' } }, 'structured_outputs', 'not valid JSON'],
    [
      'a text that is no tag',
      { structured_outputs: { structural_tag: '[]' } },
      'structured_outputs',
      'must be an object',
    ],
    [
      'a trigger without a tag',
      {
        response_format: {
          type: 'structural_tag',
          structures: [{ begin: '<f>', schema: {}, end: '</f>' }],
          triggers: ['<g'],
        },
      },
      'response_format',
      'Invalid response_format structural_tag specification. structural_tag: no trigger starts the tag',
    ],
    [
      'a tag without a format where the model reasons',
      { response_format: { type: 'structural_tag' }, chat_template_kwargs: { enable_thinking: true } },
      'response_format',
      'Invalid response_format structural_tag specification.',
    ],
    [
      'a broken schema where the model reasons',
      { ...schemaFormat({ type: 'nothing' }), chat_template_kwargs: { enable_thinking: true } },
      'response_format',
      'response_format cannot be used: ',
    ],
    [
      'tool parameters of a wrong type',
      {
        tools: [
          { type: 'function', function: { name: 'f', parameters: { type: 'object', properties: { a: { type: 7 } } } } },
        ],
        tool_choice: 'required',
      },
      'tools',
      'type',
    ],
    [
      'a tool pattern',
      {
        tools: [
          {
            type: 'function',
            function: { name: 'f', parameters: { type: 'object', properties: { a: { pattern: '(' } } } },
          },
        ],
        tool_choice: 'required',
      },
      'tools',
      'pattern',
    ],
    [
      'tool parameters that are no object',
      {
        tools: [{ type: 'function', function: { name: 'f', parameters: { type: 'string' } } }],
        tool_choice: 'required',
      },
      'tools.0.function.parameters',
      'object',
    ],
    [
      'beam search',
      { use_beam_search: true, n: 2, structured_outputs: { choice: ['a'] } },
      'use_beam_search',
      'structured_outputs',
    ],
    ['another backend', { structured_outputs: { regex: 'a', _backend: 'outlines' } }, 'structured_outputs', 'backend'],
  ])('%s', async (_name, body, param, text) => {
    const error = await refused(body);
    expect(error).toMatchObject({ status: 400, param });
    expect(error.message).toContain(text);
    expect((await chat({ structured_outputs: { choice: ['ok'] } })).choices[0]?.message.content).toBe('ok');
  });
});

/** What takes long, grows without end or nests too deeply, each within its bound. */
const BOMBS: Record<string, Body> = {
  'a pattern of many states': { structured_outputs: { regex: '(.*a){12}.{1,4000}(.*b){12}' } },
  'a counted counter': { structured_outputs: { regex: '((a{1,1000}){1,1000}){1,1000}' } },
  'minItems 10^9': schemaFormat({ type: 'array', minItems: 1_000_000_000, items: { type: 'integer' } }),
  'nested anyOf': schemaFormat(
    Array.from({ length: 120 }).reduce<object>((inner) => ({ anyOf: [inner, { type: 'integer' }] }), {}),
  ),
  'a $ref cycle': schemaFormat({ $defs: { a: { $ref: '#/$defs/b' }, b: { $ref: '#/$defs/a' } }, $ref: '#/$defs/a' }),
  'a large enum': schemaFormat({ enum: Array.from({ length: 60_000 }, (_, i) => `value ${i * 7919}`) }),
  'an ambiguous grammar': { structured_outputs: { grammar: 'root ::= x x x x x x\nx ::= "a" x | "aa" x | "a" | ""' } },
  readings: { max_tokens: 60, ignore_eos: true, structured_outputs: { grammar: 'root ::= "a" root{3} | ""' } },
  '(a+)+b': { structured_outputs: { regex: '(a+)+b' } },
};

describe('bombs', () => {
  test('none kills or blocks anything: each is refused or answered, and streams beside them go on', async () => {
    const beside = Promise.all([1, 2, 3].map((seed) => chat({ max_completion_tokens: 200, ignore_eos: true, seed })));
    const answers = await Promise.all(
      Object.entries(BOMBS).map(async ([name, body]) => {
        const response = await server.post('/v1/chat/completions', { messages, max_tokens: 12, ...closed, ...body });
        return [name, response.status] as const;
      }),
    );
    for (const [name, status] of answers) expect([200, 400], name).toContain(status);
    for (const { usage } of await beside) expect(usage?.completion_tokens).toBe(200);
    expect((await server.load()).running).toBe(0);
  }, 60_000);

  test('a client that leaves during a compilation leaves nothing behind', async () => {
    const pid = server.enginePid();
    const controllers = Array.from({ length: 12 }, () => new AbortController());
    const asked = controllers.map(({ signal }, i) => {
      const regex = `(.*a){12}.{1,${4000 + i}}(.*b){12}`;
      return server
        .post('/v1/chat/completions', { messages, structured_outputs: { regex }, ...closed }, { signal })
        .catch(() => null);
    });
    await new Promise((resolve) => setTimeout(resolve, 50));
    for (const controller of controllers) controller.abort();
    await Promise.all(asked);
    expect((await chat({ structured_outputs: { choice: ['ok'] } })).choices[0]?.message.content).toBe('ok');
    await waitFor(async () => (await server.load()).running === 0, 10_000);
    expect(server.enginePid()).toBe(pid);
  }, 60_000);

  test('many different grammars: each answered right', async () => {
    const words = Array.from({ length: 300 }, (_, i) => `w${i}`);
    const got = await Promise.all(
      words.map(async (word) => (await chat({ structured_outputs: { choice: [word] } })).choices[0]?.message.content),
    );
    expect(got).toEqual(words);
  }, 60_000);
});
