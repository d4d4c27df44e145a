/** One case at least per field and rule of the chat request. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { NOT_BUILT } from '../../../src/api/requests/not-built.ts';
import { chatCompletionFields } from '../../../src/schemas/chat-completion.ts';
import { generationInput } from '../../fixtures/generation-input.ts';
import { REFUSED } from './chat-refusals.ts';
import { errorOf, events, startTestServer, type TestServer } from './fakes.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ maxNumSeqs: 8, maxWaitingRequests: 32 });
});
afterAll(() => server.close());

const messages = [{ role: 'user', content: 'Hi' }];
const chat = (fields: object) => server.post('/v1/chat/completions', { messages, ...fields });
/** The generation that a body leads to. */
async function accepted(fields: object) {
  const response = await chat(fields);
  expect(response.status, await response.clone().text()).toBe(200);
  await response.text();
  const input = server.sessions.inputs.at(-1);
  if (!input) throw new Error('nothing was started');
  return input;
}

describe('refused', () => {
  for (const [field, cases] of Object.entries(REFUSED)) {
    test.each(cases)(`${field} %#`, async (fields, message, param) => {
      const before = server.sessions.inputs.length;
      const response = await chat(fields);
      const error = await errorOf(response);
      expect(error.message).toMatch(typeof message === 'string' ? new RegExp(escape(message)) : message);
      expect(error.param).toBe(param);
      expect(response.status).toBe(error.message.includes('does not exist') ? 404 : 400);
      expect(error.code).toBe(response.status);
      expect(server.sessions.inputs.length, 'nothing was started').toBe(before);
    });
  }

  test('a streamed request is refused by status too, not by an event', async () => {
    const response = await chat({ stream: true, temperature: -1 });
    expect(response.status).toBe(400);
    expect(response.headers.get('content-type')).toContain('application/json');
  });

  test('the type tells a wrong shape from a wrong value', async () => {
    expect((await errorOf(await chat({ n: 'x' }))).type).toBe('Bad Request');
    expect((await errorOf(await chat({ n: 0 }))).type).toBe('BadRequestError');
    expect((await errorOf(await chat({ model: 'other' }))).type).toBe('NotFoundError');
  });

  test('an error stays small whatever was sent', async () => {
    const error = await errorOf(await chat({ model: 'm'.repeat(1_000_000) }));
    expect(error.message.length).toBeLessThan(500);
    expect((await errorOf(await chat({ n: 'x'.repeat(1_000_000) }))).message.length).toBeLessThan(500);
  });
});

test('every field of the schema has a case', () => {
  const covered = new Set([...Object.keys(REFUSED), 'seed']);
  expect([...chatCompletionFields].filter((field) => !covered.has(field))).toEqual([]);
  for (const field of Object.keys(NOT_BUILT)) expect(covered.has(field), field).toBe(true);
});

describe('seed keeps 64 bits', () => {
  const raw = (seed: string) =>
    server.post('/v1/chat/completions', `{"messages":[{"role":"user","content":"Hi"}],"seed":${seed}}`);
  test.each([
    ['-9223372036854775809', 'greater_than_equal'],
    ['9223372036854775808', 'less_than_equal'],
    ['9223372036854776000', 'less_than_equal'],
    ['1e30', 'less_than_equal'],
    ['1.5', 'valid integer'],
    ['"7"', 'valid integer'],
    ['true', 'valid integer'],
  ])('%s is refused', async (seed, text) => {
    const response = await raw(seed);
    const error = await errorOf(response);
    expect(response.status).toBe(400);
    expect(error.message).toContain(text);
    expect(error.param).toBe('seed');
  });
  test.each(['-9223372036854775808', '9223372036854775807', '9007199254740993', '0', '-1'])(
    '%s is exact',
    async (seed) => {
      expect((await raw(seed)).status).toBe(200);
      expect(server.sessions.inputs.at(-1)?.sampling.seed).toBe(BigInt(seed));
    },
  );
});

describe('accepted', () => {
  test('absent fields are the defaults', async () => {
    const input = await accepted({});
    expect(input).toEqual(generationInput());
  });

  test('every field that takes null takes null, and asks for nothing by it', async () => {
    const nulls = [...chatCompletionFields].filter((field) => !NOT_NULLABLE.has(field)).map((field) => [field, null]);
    const input = await accepted(Object.fromEntries(nulls) as object);
    expect(input).toEqual(await accepted({}));
  });

  test('token controls reach the session', async () => {
    const { sampling, truncatePromptTokens, prompt } = await accepted({
      frequency_penalty: 0.5,
      presence_penalty: -0.5,
      repetition_penalty: 1.1,
      logit_bias: { 5: 1000, 7: -1 },
      bad_words: ['x', 'x'],
      allowed_token_ids: [1, 2],
      logprobs_mode: 'temperature',
      truncate_prompt_tokens: 5,
      repetition_detection: { max_pattern_size: 4, min_count: 3 },
      documents: [{ title: 'a', text: 'b' }],
      reasoning_effort: 'low',
      chat_template_kwargs: { enable_thinking: false },
    });
    expect(sampling).toMatchObject({
      frequencyPenalty: 0.5,
      presencePenalty: -0.5,
      repetitionPenalty: 1.1,
      logitBias: new Map([
        [5, 1000],
        [7, -1],
      ]),
      badWords: ['x'],
      allowedTokenIds: [1, 2],
      logprobsMode: 'temperature',
      repetition: { minSize: 1, maxSize: 4, minCount: 3 },
    });
    expect(truncatePromptTokens).toBe(5);
    if (prompt.kind !== 'chat') throw new Error('no chat');
    expect(prompt.render.documents).toEqual([{ title: 'a', text: 'b' }]);
    // The caller's own word wins over what the effort implies.
    expect(prompt.render.templateKwargs).toEqual({ reasoning_effort: 'low', enable_thinking: false });
  });

  test('every field that is not built takes its default', async () => {
    await accepted({
      frequency_penalty: 0,
      presence_penalty: 0,
      repetition_penalty: 1,
      length_penalty: 1,
      logit_bias: {},
      bad_words: [],
      spaces_between_special_tokens: true,
      logprobs_mode: 'raw',
      use_beam_search: false,
      echo: false,
      response_format: { type: 'text' },
      structured_outputs: {},
      repetition_detection: { max_pattern_size: 0, min_pattern_size: 0, min_count: 0 },
      tool_choice: 'none',
      parallel_tool_calls: true,
      include_reasoning: true,
      mm_processor_kwargs: {},
      priority: 0,
      engine_xargs: {},
      vllm_xargs: {},
      cache_salt: 'any/+= salt',
      user: 'someone',
    });
  });

  test('empty structured_outputs change nothing of response_format', async () => {
    const json_schema = { name: 'x', schema: { type: 'object' } };
    const fields = { response_format: { type: 'json_schema', json_schema }, structured_outputs: {} };
    expect((await accepted(fields)).constraint?.param).toBe('response_format');
    const tools = [{ type: 'function', function: { name: 'f' } }];
    expect((await accepted({ ...fields, tools, tool_choice: 'required' })).constraint).toBeNull();
  });

  test('tool_choice null lets the model choose, and asks for nothing that it could lack', async () => {
    const tools = [{ type: 'function', function: { name: 'f' } }];
    for (const [choice, needsToolFormat] of [
      [{}, true],
      [{ tool_choice: 'auto' }, true],
      [{ tool_choice: null }, false],
    ] as const) {
      const { reply } = await accepted({ tools, ...choice });
      expect(reply).toMatchObject({ tools: 'auto', needsToolFormat, streamsCalls: false });
    }
    expect((await accepted({ tools, stream: true })).reply).toMatchObject({ streamsCalls: true });
  });

  test('sampling fields reach the session', async () => {
    const { sampling } = await accepted({
      temperature: 0.5,
      top_p: 0.9,
      top_k: 40,
      min_p: 0.1,
      seed: 7,
      n: 2,
      max_tokens: 9,
      max_completion_tokens: 8,
      min_tokens: 3,
      stop: ['a', 'b', 'a'],
      stop_token_ids: [4, 4, 5],
      include_stop_str_in_output: true,
      ignore_eos: true,
      skip_special_tokens: false,
      logprobs: true,
      top_logprobs: 5,
    });
    expect(sampling).toMatchObject({
      n: 2,
      temperature: 0.5,
      topP: 0.9,
      topK: 40,
      minP: 0.1,
      seed: 7n,
      maxTokens: 8,
      maxTokensField: 'max_completion_tokens',
      minTokens: 3,
      stop: ['a', 'b'],
      stopTokenIds: [4, 5],
      includeStopInOutput: true,
      ignoreEos: true,
      skipSpecialTokens: false,
      topLogprobs: 5,
    });
  });

  test.each([
    [{ temperature: 0 }, 0],
    [{ temperature: 5 }, 5],
  ])('temperature %j', async (fields, expected) => {
    expect((await accepted(fields)).sampling.temperature).toBe(expected);
  });
  test.each([
    [-1, 0],
    [0, 0],
    [2 ** 53, 2 ** 31 - 1],
  ])('top_k %d', async (topK, expected) => {
    expect((await accepted({ top_k: topK })).sampling.topK).toBe(expected);
  });
  test('logprobs without top_logprobs is the sampled token only', async () => {
    expect((await accepted({ logprobs: true })).sampling.topLogprobs).toBe(0);
    expect((await accepted({ logprobs: false, top_logprobs: 0 })).sampling.topLogprobs).toBeNull();
  });
  test('a single stop string', async () => {
    expect((await accepted({ stop: 'END' })).sampling.stop).toEqual(['END']);
  });
  test('continue_final_message turns the generation prompt off', async () => {
    const { prompt } = await accepted({ continue_final_message: true });
    expect(prompt).toMatchObject({ render: { addGenerationPrompt: false, continueFinalMessage: true } });
  });
  test('stream_options {} passes without stream', async () => {
    await accepted({ stream_options: {} });
  });
  test.each([null, '', 'first', 'second'])('model %j answers by the first name', async (model) => {
    const response = await chat({ model });
    expect((await response.json()) as object).toMatchObject({ model: 'first' });
  });

  test('roles and parts', async () => {
    const roles = ['developer', 'system', 'user', 'assistant', 'tool', 'function', 'critic'];
    const { prompt } = await accepted({
      messages: [
        ...roles.map((role) => ({ role, content: role, extra: { kept: true } })),
        {
          role: 'assistant',
          content: null,
          tool_calls: [{ id: '1', type: 'function', function: { name: 'f', arguments: '{}' } }],
        },
        { role: 'assistant', reasoning_content: 'why', content: 'so' },
        { role: 'assistant', reasoning: null, reasoning_content: 'why', content: 'so' },
        { role: 'assistant', reasoning: 'new', reasoning_content: 'why', content: 'so' },
        {
          role: 'user',
          name: 'ann',
          content: [
            { type: 'text', text: 'a', lang: 'en' },
            'b',
            { type: 'input_text', text: 'c' },
            { type: 'text', text: null },
            { type: 'refusal', refusal: 'd' },
            { type: 'thinking', thinking: 'e', closed: true },
          ],
        },
      ],
    });
    if (prompt.kind !== 'chat') throw new Error('not a chat');
    expect(prompt.messages.slice(0, roles.length)).toEqual(
      roles.map((role) => ({ role, content: role, extra: { kept: true } })),
    );
    expect(prompt.messages[roles.length]).toMatchObject({ content: null, tool_calls: [{ id: '1' }] });
    for (const [at, reasoning] of ['why', 'why', 'new'].entries())
      expect(prompt.messages[roles.length + 1 + at]).toEqual({ role: 'assistant', content: 'so', reasoning });
    expect(prompt.messages.at(-1)).toEqual({
      role: 'user',
      name: 'ann',
      content: [
        { type: 'text', text: 'a', lang: 'en' },
        ...['b', 'c', 'd', 'e'].map((text) => ({ type: 'text', text })),
      ],
    });
  });

  test('unknown keys are accepted and named in a header', async () => {
    const response = await chat({ guided_json: {}, best_of: 3, 'bad\r\nname': 1 });
    expect(response.status).toBe(200);
    expect(response.headers.get('x-tandem-ignored-fields')).toBe('guided_json, best_of');
  });

  test('so are those of stream_options and response_format', async () => {
    const labels = { name: 'x', schema: {}, strickt: true };
    const response = await chat({
      stream: true,
      stream_options: { include_obfuscation: true },
      response_format: { type: 'json_schema', json_schema: labels, schema: {} },
    });
    expect(response.status).toBe(200);
    const named = 'stream_options.include_obfuscation, response_format.schema, response_format.json_schema.strickt';
    expect(response.headers.get('x-tandem-ignored-fields')).toBe(named);
  });

  test('so are options about JSON where there is none', async () => {
    const options = { disable_any_whitespace: true, disable_additional_properties: false, whitespace_pattern: ' ?' };
    const ignored = async (kind: object) => {
      const response = await chat({ structured_outputs: { ...kind, ...options } });
      expect(response.status).toBe(200);
      return response.headers.get('x-tandem-ignored-fields');
    };
    const named = 'structured_outputs.disable_any_whitespace, structured_outputs.whitespace_pattern';
    for (const kind of [{ regex: 'a' }, { choice: ['a'] }, { grammar: 'root ::= "a"' }])
      expect(await ignored(kind)).toBe(named);
    for (const kind of [{ json: {} }, { json_object: true }, { structural_tag: '{}' }, { regex: null, json: {} }])
      expect(await ignored(kind)).toBeNull();
  });

  test('__proto__ and constructor keys pollute nothing', async () => {
    const kwargs = '{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}},"a":1}';
    const body = `{"__proto__":{"n":3},"constructor":1,"messages":[{"role":"user","content":"Hi","__proto__":{"x":1}}],"chat_template_kwargs":${kwargs}}`;
    const response = await server.post('/v1/chat/completions', body);
    expect(response.status, await response.text()).toBe(200);
    expect(({} as Record<string, unknown>)['polluted']).toBeUndefined();
    const input = server.sessions.inputs.at(-1);
    expect(input?.sampling.n).toBe(1);
  });
});

const NOT_NULLABLE = new Set([
  'messages',
  'min_tokens',
  'length_penalty',
  'include_stop_str_in_output',
  'ignore_eos',
  'skip_special_tokens',
  'spaces_between_special_tokens',
  'request_id',
  'add_special_tokens',
  'use_beam_search',
  'echo',
  'priority',
  'include_reasoning',
  'add_generation_prompt',
  'continue_final_message',
]);

function escape(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}

test("the server's template variables stand below those of a request", async () => {
  const own = await startTestServer({ defaultChatTemplateKwargs: { tone: 'dry', enable_thinking: true } });
  const kwargs = async (path: string, fields: object) => {
    await own.post(path, { messages, ...fields });
    const prompt = path === '/tokenize' ? own.sessions.tokenized.at(-1) : own.sessions.inputs.at(-1)?.prompt;
    return prompt?.kind === 'chat' ? prompt.render.templateKwargs : null;
  };
  try {
    for (const path of ['/v1/chat/completions', '/tokenize']) {
      expect(await kwargs(path, {})).toEqual({ tone: 'dry', enable_thinking: true });
      const asked = { chat_template_kwargs: { tone: 'warm' } };
      expect(await kwargs(path, asked)).toEqual({ tone: 'warm', enable_thinking: true });
    }
    expect(await kwargs('/v1/chat/completions', { reasoning_effort: 'none' })).toMatchObject({
      enable_thinking: false,
    });
  } finally {
    await own.close();
  }
});

test("every effort that OpenAI's libraries and vLLM name reaches the template", async () => {
  for (const effort of ['minimal', 'low', 'medium', 'high', 'xhigh', 'max']) {
    const templateKwargs = { reasoning_effort: effort, enable_thinking: true };
    expect((await accepted({ reasoning_effort: effort })).prompt).toMatchObject({ render: { templateKwargs } });
    const response = await server.post('/v1/responses', { input: 'Hi', reasoning: { effort } });
    expect(response.status, effort).toBe(200);
    await response.text();
    expect(server.sessions.inputs.at(-1)?.prompt).toMatchObject({ render: { templateKwargs } });
  }
});

test('a server that forces usage sends it with every chunk, whatever the client says', async () => {
  const forcing = await startTestServer({ forceIncludeUsage: true });
  try {
    for (const stream_options of [undefined, { include_usage: false }]) {
      const response = await forcing.post('/v1/chat/completions', { messages, stream: true, stream_options });
      const chunks = events(await response.text()).filter((event) => event !== '[DONE]') as { usage?: object }[];
      expect(chunks.length).toBeGreaterThan(2);
      for (const chunk of chunks) expect(chunk.usage).toMatchObject({ prompt_tokens: 3 });
    }
  } finally {
    await forcing.close();
  }
});

test('X-Vllm-Priority goes before the priority of the body', async () => {
  const ordered = await startTestServer({ schedulingPolicy: 'priority' });
  try {
    const bodies = { '/v1/chat/completions': { messages }, '/v1/completions': { prompt: 'Hi' } };
    for (const [path, body] of Object.entries(bodies)) {
      const ask = (priority: string) => ordered.post(path, { ...body, priority: 7 }, { 'X-Vllm-Priority': priority });
      for (const [sent, taken] of [
        ['', 7],
        ['-3', -3],
        ['+2', 2],
        ['-0', 0],
      ] as const) {
        expect((await ask(sent)).status).toBe(200);
        expect(ordered.sessions.inputs.at(-1)?.priority).toBe(taken);
      }
      for (const sent of ['high', '1.5', '1, 2', '9'.repeat(20)])
        expect(await errorOf(await ask(sent))).toMatchObject({ param: 'X-Vllm-Priority' });
    }
  } finally {
    await ordered.close();
  }
  const refused = await server.post('/v1/chat/completions', { messages }, { 'X-Vllm-Priority': '2' });
  expect((await errorOf(refused)).message).toContain('Got priority 2 but Priority scheduling is not enabled');
});
