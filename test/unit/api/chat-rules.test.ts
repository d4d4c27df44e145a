/** One case at least per field and rule of the chat request. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { NOT_BUILT } from '../../../src/api/requests/not-built.ts';
import { chatCompletionFields } from '../../../src/schemas/chat-completion.ts';
import { errorOf, startTestServer, type TestServer } from './fakes.ts';

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

type Refusal = [fields: object, message: string | RegExp, param: string | null];

const REFUSED: Record<string, Refusal[]> = {
  messages: [
    [{ messages: undefined }, 'messages: Field required', 'messages'],
    [{ messages: null }, 'messages: Input should be array', 'messages'],
    [{ messages: 'x' }, 'messages: Input should be array', 'messages'],
    [{ messages: [7] }, 'Input should be object', 'messages.0'],
    [{ messages: [{ content: 'x' }] }, 'messages.0.role: Field required', 'messages.0.role'],
    [{ messages: [{ role: 'user', content: 7 }] }, 'Input should be string or array or null', 'messages.0.content'],
    [{ messages: [{ role: 'user', content: [{ text: 'x' }] }] }, 'Field required', 'messages.0.content.0.type'],
    [
      { messages: [{ role: 'user', content: [{ type: 'blob' }] }] },
      "Unsupported chat content part type: 'blob'",
      'type',
    ],
    [{ messages: [{ role: 'user', content: [{ type: 'image_url' }] }] }, "'image_url'", 'type'],
    [{ messages: [{ role: 'user', content: [{ type: 'constructor' }] }] }, "'constructor'", 'type'],
  ],
  model: [
    [{ model: 7 }, 'Input should be string or null', 'model'],
    [{ model: 'other' }, 'The model `other` does not exist.', 'model'],
  ],
  max_tokens: [
    [{ max_tokens: 0 }, 'max_tokens must be at least 1, got 0.', 'max_tokens'],
    [{ max_tokens: -5 }, 'got -5.', 'max_tokens'],
    [{ max_tokens: 1.5 }, 'Input should be integer or null, got 1.5', 'max_tokens'],
    [{ max_tokens: '5' }, 'Input should be integer or null, got "5"', 'max_tokens'],
  ],
  max_completion_tokens: [[{ max_completion_tokens: 0 }, 'must be at least 1, got 0.', 'max_completion_tokens']],
  temperature: [
    [{ temperature: -1 }, 'temperature must be non-negative, got -1.', 'temperature'],
    [{ temperature: 'hot' }, 'Input should be number', 'temperature'],
  ],
  top_p: [
    [{ top_p: 0 }, 'top_p must be in (0, 1], got 0.', 'top_p'],
    [{ top_p: 1.5 }, 'top_p must be in (0, 1], got 1.5.', 'top_p'],
  ],
  top_k: [
    [{ top_k: -2 }, 'top_k must be 0 (disable), or at least 1, got -2.', 'top_k'],
    [{ top_k: 1.5 }, 'Input should be integer', 'top_k'],
  ],
  min_p: [
    [{ min_p: 2 }, 'min_p must be in [0, 1]', 'min_p'],
    [{ min_p: -0.1 }, 'min_p must be in [0, 1]', 'min_p'],
  ],
  n: [
    [{ n: 0 }, 'n must be at least 1, got 0.', 'n'],
    [{ n: -1 }, 'n must be at least 1, got -1.', 'n'],
    [{ n: 2 ** 31 }, 'n must be at most 128', 'n'],
    [{ n: 1e9 }, 'n must be at most 128', 'n'],
    [{ n: 1.5 }, 'Input should be integer', 'n'],
    [{ n: '3' }, 'Input should be integer', 'n'],
    [{ n: 41 }, 'n must be at most 40', 'n'],
    [{ n: 3, temperature: 0 }, 'n must be 1 when using greedy sampling, got 3.', 'n'],
  ],
  stop: [
    [{ stop: '' }, 'stop cannot contain an empty string.', 'stop'],
    [{ stop: ['a', ''] }, 'stop cannot contain an empty string.', 'stop.1'],
    [{ stop: [7] }, 'Input should be string', 'stop.0'],
    [{ stop: 7 }, 'Input should be string or array or null', 'stop'],
    [{ stop: Array.from({ length: 100_000 }, (_, i) => `s${i}`) }, 'more than 64 items', 'stop'],
    [{ stop: ['x'.repeat(1_000_000)] }, 'more than 1024 characters', 'stop.0'],
  ],
  stop_token_ids: [
    [{ stop_token_ids: [100] }, 'out-of-vocab token id 100. Vocabulary size: 100', 'stop_token_ids'],
    [{ stop_token_ids: [-1] }, 'must be >= 0', 'stop_token_ids.0'],
    [{ stop_token_ids: ['a'] }, 'Input should be integer', 'stop_token_ids.0'],
  ],
  stream: [[{ stream: 'yes' }, 'Input should be boolean or null', 'stream']],
  stream_options: [
    [{ stream_options: { include_usage: true } }, 'only be defined when `stream=True`', 'stream_options'],
    [{ stream_options: { include_usage: null } }, 'only be defined when `stream=True`', 'stream_options'],
    [{ stream: true, stream_options: { include_usage: 7 } }, 'Input should be boolean', 'stream_options.include_usage'],
    [{ stream: true, stream_options: [] }, 'Input should be object', 'stream_options'],
  ],
  logprobs: [[{ logprobs: 3 }, 'Input should be boolean or null', 'logprobs']],
  top_logprobs: [
    [{ top_logprobs: 3 }, 'when using `top_logprobs`, `logprobs` must be set to true.', 'top_logprobs'],
    [{ top_logprobs: -1 }, '`logprobs` must be set to true.', 'top_logprobs'],
    [{ logprobs: true, top_logprobs: -2 }, '`top_logprobs` must be a positive value or -1.', 'top_logprobs'],
    [{ logprobs: true, top_logprobs: 'abc' }, 'Input should be integer', 'top_logprobs'],
    [
      { logprobs: true, top_logprobs: 21 },
      'Requested sample logprobs of 21, which is greater than max allowed: 20',
      'logprobs',
    ],
    [{ logprobs: true, top_logprobs: -1 }, 'Requested sample logprobs of 100', 'logprobs'],
    [{ logprobs: true, top_logprobs: 1e6, stream: true }, 'greater than max allowed', 'logprobs'],
  ],
  min_tokens: [
    [{ min_tokens: -1 }, 'min_tokens must be greater than or equal to 0, got -1.', 'min_tokens'],
    [{ min_tokens: 10, max_tokens: 5 }, 'min_tokens must be less than or equal to max_tokens=5, got 10.', 'min_tokens'],
  ],
  continue_final_message: [
    [
      { continue_final_message: true, add_generation_prompt: true },
      'Cannot set both `continue_final_message` and `add_generation_prompt` to True.',
      'continue_final_message',
    ],
  ],
  add_generation_prompt: [[{ add_generation_prompt: 1 }, 'Input should be boolean', 'add_generation_prompt']],
  add_special_tokens: [[{ add_special_tokens: null }, 'Input should be boolean', 'add_special_tokens']],
  ignore_eos: [[{ ignore_eos: 'x' }, 'Input should be boolean', 'ignore_eos']],
  include_stop_str_in_output: [
    [{ include_stop_str_in_output: 1 }, 'Input should be boolean', 'include_stop_str_in_output'],
  ],
  skip_special_tokens: [[{ skip_special_tokens: 0 }, 'Input should be boolean', 'skip_special_tokens']],
  chat_template_kwargs: [
    [
      { chat_template_kwargs: { tokenize: true } },
      "Found unexpected chat template kwargs from request: {'tokenize'}",
      'chat_template_kwargs',
    ],
    [{ chat_template_kwargs: { chat_template: 'x' } }, 'Found unexpected chat template kwargs', 'chat_template_kwargs'],
    [{ chat_template_kwargs: [] }, 'Input should be object', 'chat_template_kwargs'],
  ],
  request_id: [
    [{ request_id: 7 }, 'Input should be string', 'request_id'],
    [{ request_id: 'a\r\nX: y' }, 'printable ASCII', 'request_id'],
    [{ request_id: '' }, 'printable ASCII', 'request_id'],
    [{ request_id: 'x'.repeat(1_000_000) }, 'printable ASCII', 'request_id'],
  ],
  user: [[{ user: 7 }, 'Input should be string', 'user']],
  return_token_ids: [[{ return_token_ids: 'yes' }, 'Input should be boolean', 'return_token_ids']],
  return_tokens_as_token_ids: [
    [{ return_tokens_as_token_ids: 1 }, 'Input should be boolean', 'return_tokens_as_token_ids'],
  ],
  cache_salt: [[{ cache_salt: '' }, "Parameter 'cache_salt' must be a non-empty string if provided.", 'cache_salt']],
  parallel_tool_calls: [[{ parallel_tool_calls: 'no' }, 'Input should be boolean', 'parallel_tool_calls']],
  tool_choice: [
    [{ tool_choice: 'auto' }, 'When using `tool_choice`, `tools` must be set.', 'tool_choice'],
    [{ tool_choice: {} }, 'When using `tool_choice`, `tools` must be set.', 'tool_choice'],
  ],
  // Not built yet: the type and bounds first, then the refusal by name.
  tools: [
    [{ tools: [] }, '`tools` must not be an empty array.', 'tools'],
    [{ tools: [{ type: 'function' }] }, 'Field required', 'tools.0.function'],
    [{ tools: [{ type: 'function', function: { name: 'f' } }] }, '`tools` is not supported', 'tools'],
  ],
  frequency_penalty: [
    [{ frequency_penalty: 3 }, 'frequency_penalty must be in [-2, 2], got 3.', 'frequency_penalty'],
    [{ frequency_penalty: 0.5 }, 'is not supported', 'frequency_penalty'],
  ],
  presence_penalty: [
    [{ presence_penalty: 3 }, 'presence_penalty must be in [-2, 2], got 3.', 'presence_penalty'],
    [{ presence_penalty: -1 }, 'is not supported', 'presence_penalty'],
  ],
  repetition_penalty: [
    [{ repetition_penalty: 0 }, 'repetition_penalty must be greater than zero', 'repetition_penalty'],
    [{ repetition_penalty: 1.1 }, 'is not supported', 'repetition_penalty'],
  ],
  length_penalty: [[{ length_penalty: 2 }, 'is not supported', 'length_penalty']],
  logit_bias: [
    [{ logit_bias: { 5: 'x' } }, 'Input should be number', 'logit_bias.5'],
    [{ logit_bias: { 5: 1 } }, 'is not supported', 'logit_bias'],
  ],
  bad_words: [
    [{ bad_words: [''] }, 'bad_words cannot contain an empty string.', 'bad_words.0'],
    [{ bad_words: ['x'] }, 'is not supported', 'bad_words'],
  ],
  allowed_token_ids: [
    [{ allowed_token_ids: [] }, 'allowed_token_ids is not None and empty!', 'allowed_token_ids'],
    [{ allowed_token_ids: [1] }, 'is not supported', 'allowed_token_ids'],
  ],
  truncate_prompt_tokens: [
    [{ truncate_prompt_tokens: -2 }, 'must be >= -1', 'truncate_prompt_tokens'],
    [{ truncate_prompt_tokens: 5 }, 'is not supported', 'truncate_prompt_tokens'],
  ],
  prompt_logprobs: [
    [{ prompt_logprobs: -2 }, '`prompt_logprobs` must be a positive value or -1', 'prompt_logprobs'],
    [{ prompt_logprobs: 1 }, 'is not supported', 'prompt_logprobs'],
  ],
  spaces_between_special_tokens: [
    [{ spaces_between_special_tokens: false }, 'is not supported', 'spaces_between_special_tokens'],
  ],
  logprobs_mode: [
    [{ logprobs_mode: 'cooked' }, 'Input should be one of "raw"', 'logprobs_mode'],
    [{ logprobs_mode: 'processed' }, 'is not supported', 'logprobs_mode'],
  ],
  use_beam_search: [[{ use_beam_search: true }, 'is not supported', 'use_beam_search']],
  echo: [[{ echo: true }, 'is not supported', 'echo']],
  response_format: [
    [{ response_format: { type: 'xml' } }, 'Input should be one of', 'response_format.type'],
    [{ response_format: { type: 'json_object' } }, 'is not supported', 'response_format'],
  ],
  structured_outputs: [
    [{ structured_outputs: { regex: 7 } }, 'Input should be string', 'structured_outputs.regex'],
    [{ structured_outputs: { regex: 'a' } }, 'is not supported', 'structured_outputs'],
  ],
  repetition_detection: [
    [
      { repetition_detection: { max_pattern_size: 'x' } },
      'Input should be integer',
      'repetition_detection.max_pattern_size',
    ],
    [{ repetition_detection: { max_pattern_size: 5, min_count: 2 } }, 'is not supported', 'repetition_detection'],
  ],
  reasoning_effort: [
    [{ reasoning_effort: 'wild' }, 'Input should be one of', 'reasoning_effort'],
    [{ reasoning_effort: 'low' }, 'is not supported', 'reasoning_effort'],
  ],
  include_reasoning: [[{ include_reasoning: false }, 'is not supported', 'include_reasoning']],
  documents: [[{ documents: [{ title: 'x' }] }, 'is not supported', 'documents']],
  chat_template: [[{ chat_template: '{{ x }}' }, '--trust-request-chat-template is not set', 'chat_template']],
  mm_processor_kwargs: [[{ mm_processor_kwargs: { a: 1 } }, 'is not supported', 'mm_processor_kwargs']],
  priority: [
    [{ priority: 10 }, 'Got priority 10 but Priority scheduling is not enabled.', 'priority'],
    [{ priority: 1.5 }, 'Input should be integer', 'priority'],
  ],
  kv_transfer_params: [[{ kv_transfer_params: {} }, 'is not supported', 'kv_transfer_params']],
  engine_xargs: [[{ engine_xargs: { a: 1 } }, 'is not supported', 'engine_xargs']],
  vllm_xargs: [[{ vllm_xargs: { a: 1 } }, 'is not supported', 'vllm_xargs']],
};

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
  for (const field of Object.keys(NOT_BUILT)) expect(covered.has(field) || field === 'suffix', field).toBe(true);
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
    expect(input).toEqual({
      prompt: {
        kind: 'chat',
        messages: [{ role: 'user', content: 'Hi' }],
        render: {
          addGenerationPrompt: true,
          continueFinalMessage: false,
          addSpecialTokens: false,
          tools: null,
          templateKwargs: {},
        },
      },
      sampling: {
        n: 1,
        temperature: null,
        topP: null,
        topK: null,
        minP: null,
        seed: null,
        maxTokens: null,
        maxTokensField: 'max_tokens',
        minTokens: 0,
        stop: [],
        stopTokenIds: [],
        includeStopInOutput: false,
        ignoreEos: false,
        skipSpecialTokens: true,
        topLogprobs: null,
      },
      priority: 0,
      tenant: 'default',
    });
  });

  test('every field that takes null takes null, and asks for nothing by it', async () => {
    const nulls = [...chatCompletionFields].filter((field) => !NOT_NULLABLE.has(field)).map((field) => [field, null]);
    const input = await accepted(Object.fromEntries(nulls) as object);
    expect(input).toEqual(await accepted({}));
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
    expect(sampling).toEqual({
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
    [{ temperature: 1e-300 }, 0.01],
    [{ temperature: 0.005 }, 0.01],
    [{ temperature: 5 }, 5],
  ])('temperature %j', async (fields, expected) => {
    expect((await accepted(fields)).sampling.temperature).toBe(expected);
  });
  test('negative zero is zero', async () => {
    await server.post('/v1/chat/completions', '{"messages":[{"role":"user","content":"Hi"}],"temperature":-0.0}');
    expect(server.sessions.inputs.at(-1)?.sampling.temperature).toBe(0);
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
        {
          role: 'user',
          name: 'ann',
          content: [{ type: 'text', text: 'a' }, 'b', { type: 'input_text', text: 'c' }, { type: 'text', text: null }],
        },
      ],
    });
    if (prompt.kind !== 'chat') throw new Error('not a chat');
    expect(prompt.messages.slice(0, roles.length)).toEqual(
      roles.map((role) => ({ role, content: role, extra: { kept: true } })),
    );
    expect(prompt.messages[roles.length]).toMatchObject({ content: null, tool_calls: [{ id: '1' }] });
    expect(prompt.messages[roles.length + 1]).toEqual({ role: 'assistant', content: 'so', reasoning: 'why' });
    expect(prompt.messages.at(-1)).toEqual({
      role: 'user',
      name: 'ann',
      content: ['a', 'b', 'c'].map((text) => ({ type: 'text', text })),
    });
  });

  test('unknown keys are accepted and named in a header', async () => {
    const response = await chat({ guided_json: {}, best_of: 3, 'bad\r\nname': 1 });
    expect(response.status).toBe(200);
    expect(response.headers.get('x-tandem-ignored-fields')).toBe('guided_json, best_of');
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
