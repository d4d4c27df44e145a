/** What a request to /v1/messages means: the chat that it is, its blocks as messages, what is refused. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { writeJson } from '../../../src/control/json-numbers.ts';
import { SessionError } from '../../../src/control/sessions/session.ts';
import { messagesFields } from '../../../src/schemas/messages.ts';
import { FakeSessions, startTestServer, type TestServer } from './fakes.ts';
import { AskingMessages, COUNT, HI, PATH, type Fields } from './messages-asking.ts';

let server: TestServer;
const asking = new AskingMessages(() => server);
beforeAll(async () => {
  server = await startTestServer({ maxBodyBytes: 100_000 });
});
afterAll(() => server.close());
beforeEach(() => {
  server.sessions.script = new FakeSessions().script;
  server.sessions.refuse = null;
});

const tools = [{ name: 'f', description: 'F', input_schema: { type: 'object' }, strict: true }];
const chatTools = [
  { type: 'function', function: { name: 'f', description: 'F', parameters: { type: 'object' }, strict: true } },
];
const text = (content: string): Fields => ({ type: 'text', text: content });

describe('what a request means', () => {
  test('it is the generation of the chat that asks for the same', async () => {
    const shared = {
      ...{ temperature: 0.5, top_p: 0.9, top_k: 3, min_p: 0.1, seed: 7, min_tokens: 2, ignore_eos: true },
      ...{ frequency_penalty: 0.1, presence_penalty: 0.2, repetition_penalty: 1.1, logit_bias: { 5: 1 } },
      ...{ stop_token_ids: [3], bad_words: ['y'], allowed_token_ids: [1], skip_special_tokens: false },
      ...{ spaces_between_special_tokens: true, cache_salt: 's', priority: 0, max_tokens: 9 },
    };
    const own = await asking.input({
      ...shared,
      system: [text('Be kind.')],
      tools,
      tool_choice: { type: 'tool', name: 'f', disable_parallel_tool_use: true },
      stop_sequences: ['x'],
      thinking: { type: 'disabled' },
      output_config: { effort: 'low' },
      chat_template_kwargs: { a: 1 },
    });
    await server.post('/v1/chat/completions', {
      ...shared,
      messages: [
        { role: 'system', content: 'Be kind.' },
        { role: 'user', content: 'Hi' },
      ],
      tools: chatTools,
      tool_choice: { type: 'function', function: { name: 'f' } },
      parallel_tool_calls: false,
      stop: ['x'],
      chat_template_kwargs: { enable_thinking: false, reasoning_effort: 'low', a: 1 },
    });
    const chat = server.sessions.inputs.at(-1);
    if (!chat) throw new Error('no chat');
    expect(own).toEqual({ ...chat, sampling: { ...chat.sampling, fitsMaxTokens: true } });
  });

  test('a format is the schema that holds the text, by its old name too', async () => {
    const schema = { type: 'object', properties: { x: { type: 'number' } } };
    const format = { type: 'json_schema', schema };
    const { constraint } = await asking.input({ output_config: { format } });
    expect(constraint).toMatchObject({ param: 'output_config.format.schema' });
    const old = await asking.input({ output_format: format });
    expect(old.constraint).toEqual({ ...constraint, param: 'output_format.schema' });
    expect(await asking.refusal({ output_format: format, output_config: { format } })).toMatchObject({
      status: 400,
      message: expect.stringMatching(/^output_format: /) as string,
    });
  });

  test('of nothing but what is required asks for the defaults, and nulls ask for nothing', async () => {
    const plain = await asking.input({});
    expect(plain).toMatchObject({
      reply: { tools: 'none', includeReasoning: true, parallelToolCalls: true },
      prompt: { render: { templateKwargs: {}, tools: null, continueFinalMessage: false } },
      sampling: { topLogprobs: null, maxTokens: 10 },
      constraint: null,
      priority: 0,
    });
    const required = new Set(['max_tokens', 'messages', 'request_id', 'priority', 'min_tokens', 'ignore_eos']);
    const never = new Set(['allowed_token_ids', 'skip_special_tokens', 'spaces_between_special_tokens']);
    const names = [...messagesFields].filter((name) => !required.has(name) && !never.has(name));
    const nulls = Object.fromEntries(names.map((name) => [name, null]));
    expect(await asking.input(nulls)).toEqual(plain);
    expect(await asking.input({ output_config: { effort: null, format: null } })).toEqual(plain);
  });

  test('what clients send that has no effect changes nothing', async () => {
    const plain = await asking.input({});
    const idle = {
      metadata: { user_id: 'u' },
      service_tier: 'standard_only',
      cache_control: { type: 'ephemeral' },
      tool_choice: { type: 'auto' },
      tools: [],
      mcp_servers: [],
      context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
      speed: 'standard',
      messages: [{ role: 'user', content: [{ ...text('Hi'), cache_control: { type: 'ephemeral', ttl: '1h' } }] }],
    };
    expect(await asking.input(idle)).toEqual(plain);
    const custom = {
      ...tools[0],
      type: 'custom',
      cache_control: null,
      eager_input_streaming: true,
      defer_loading: false,
    };
    const own = await asking.input({ tools: [custom] });
    expect(own).toEqual(await asking.input({ tools }));
    const beta = { 'anthropic-version': '2023-06-01', 'anthropic-beta': 'a-2025-01-01,b' };
    expect((await server.post(`${PATH}?beta=true`, HI, beta)).status).toBe(200);
  });

  test.each<[string, Fields, object]>([
    ['enabled', { thinking: { type: 'enabled', budget_tokens: 2048 } }, { enable_thinking: true }],
    ['adaptive', { thinking: { type: 'adaptive', display: 'summarized' } }, { enable_thinking: true }],
    ['disabled', { thinking: { type: 'disabled' } }, { enable_thinking: false }],
    ['an effort alone', { output_config: { effort: 'max' } }, { reasoning_effort: 'max' }],
    [
      'what the request says of the template',
      { thinking: { type: 'disabled' }, chat_template_kwargs: { enable_thinking: true } },
      { enable_thinking: true },
    ],
  ])('thinking: %s', async (_, fields, kwargs) => {
    expect((await asking.input(fields)).prompt.render.templateKwargs).toEqual(kwargs);
  });

  test.each<[string, Fields, string]>([
    ['auto', { type: 'auto' }, 'auto'],
    ['any', { type: 'any' }, 'required'],
    ['none', { type: 'none' }, 'none'],
  ])('tool_choice %s', async (_, tool_choice, mode) => {
    const { reply, prompt } = await asking.input({ tools, tool_choice });
    expect(reply).toMatchObject({ tools: mode, parallelToolCalls: true });
    expect(prompt.render.tools).toEqual(chatTools);
  });

  test('keys that are not known are named, and so is the budget that nothing holds', async () => {
    const ignored = async (fields: Fields, path = PATH) =>
      (await server.post(path, { ...HI, ...fields })).headers.get('x-tandem-ignored-fields');
    expect(await ignored({})).toBe(null);
    expect(await ignored({ stop: 'x', thinking: { type: 'enabled', budget_tokens: 1024 } })).toBe(
      'stop, thinking.budget_tokens',
    );
    expect(await ignored({}, COUNT)).toBe('max_tokens');
  });

  test('fields of a chat that this endpoint does not have do nothing', async () => {
    const stray = {
      ...{ n: 2, use_beam_search: true, length_penalty: 'x', logprobs_mode: 'x', include_stop_str_in_output: true },
      repetition_detection: { max_pattern_size: 1, min_count: 2 },
    };
    expect(await asking.input(stray)).toEqual(await asking.input({}));
    expect((await asking.answer({ n: 'x' })).type).toBe('message');
  });

  test('numbers of inputs, schemas and tools stay as they were written', async () => {
    const call = '{"type":"tool_use","id":"c","name":"f","input":{"x":1.0,"y":12345678901234567890}}';
    const messages = `[{"role":"assistant","content":[${call}]},{"role":"user","content":"Go on"}]`;
    const tool = '{"name":"f","input_schema":{"type":"object","properties":{"x":{"multipleOf":2.0}}}}';
    await server.post(PATH, `{"max_tokens":5,"messages":${messages},"tools":[${tool}]}`);
    const prompt = writeJson(server.sessions.inputs.at(-1)?.prompt);
    expect(prompt).toContain('"arguments":{"x":1.0,"y":12345678901234567890}');
    expect(prompt).toContain('"multipleOf":2.0');
  });
});

describe('messages', () => {
  const use = { type: 'tool_use', id: 'toolu_1', name: 'f', input: { x: 1 } };
  const called = { id: 'toolu_1', type: 'function', function: { name: 'f', arguments: { x: 1 } } };
  const user = { role: 'user', content: 'Hi' };

  test('texts, as a text or as parts', async () => {
    const content = [text('a'), text('b')];
    expect(await asking.messages({ role: 'user', content }, { role: 'assistant', content }, user)).toEqual([
      { role: 'user', content },
      { role: 'assistant', content: 'ab' },
      user,
    ]);
    expect(await asking.messages({ role: 'user', content: [text('a')] })).toEqual([{ role: 'user', content: 'a' }]);
  });

  test('system comes first, and may come later too', async () => {
    const later = { role: 'system', content: [text('Now.')] };
    const { prompt } = await asking.input({ system: [text('a'), text('b')], messages: [user, later] });
    expect(prompt.messages).toEqual([
      { role: 'system', content: [text('a'), text('b')] },
      user,
      { role: 'system', content: 'Now.' },
    ]);
    expect((await asking.input({ system: '' })).prompt.messages).toEqual([user]);
  });

  test('what Claude Code writes for accounts is left out of instructions', async () => {
    const header = text('x-anthropic-billing-header: cc_version=2.1.160.bca; cc_entrypoint=cli; cch=d1d48;');
    const shown = async (system: unknown, ...messages: Fields[]) =>
      (await asking.input({ system, messages: [...messages, user] })).prompt.messages;
    const system = (content: unknown) => ({ role: 'system', content });
    expect(await shown([header, text('a'), text('b')])).toEqual([system([text('a'), text('b')]), user]);
    expect(await shown([header, text('a')], system([header, text('b')]))).toEqual([system('a'), system('b'), user]);
    expect(await shown([header], system(header.text))).toEqual([user]);
    expect(await shown(`${header.text}\n`)).toEqual([user]);
    expect(await shown(`${header.text}\nBe brief.\n`)).toEqual([system('Be brief.\n'), user]);
    // Only where it begins instructions.
    const asked = { role: 'user', content: header.text };
    expect(await shown([text(` ${header.text}`)], asked)).toEqual([system(` ${header.text}`), asked, user]);
  });

  test('thoughts, text and calls are one message, results are messages of their own', async () => {
    const reply = [{ type: 'thinking', thinking: 'hm', signature: 's' }, text('So'), use];
    const result = { type: 'tool_result', tool_use_id: 'toolu_1', content: [text('a'), text('b')] };
    const failed = { type: 'tool_result', tool_use_id: 'toolu_1', content: 'no', is_error: true };
    const bare = { type: 'tool_result', tool_use_id: 'toolu_1' };
    const answer = { role: 'user', content: [text('Here:'), result, failed, bare, text('And?')] };
    expect(await asking.messages(user, { role: 'assistant', content: reply }, answer)).toEqual([
      user,
      { role: 'assistant', content: 'So', reasoning: 'hm', tool_calls: [called] },
      { role: 'user', content: 'Here:' },
      { role: 'tool', tool_call_id: 'toolu_1', content: [text('a'), text('b')] },
      { role: 'tool', tool_call_id: 'toolu_1', content: 'Error: no' },
      { role: 'tool', tool_call_id: 'toolu_1', content: '' },
      { role: 'user', content: 'And?' },
    ]);
  });

  test('a result whose call is missing is left to the template', async () => {
    const result = { type: 'tool_result', tool_use_id: 'gone', content: 'x' };
    expect(await asking.messages({ role: 'user', content: [result] })).toEqual([
      { role: 'tool', tool_call_id: 'gone', content: 'x' },
    ]);
  });

  test('empty contents are empty messages', async () => {
    const empty = { role: 'user', content: [] };
    expect(await asking.messages(empty, { role: 'assistant', content: [] }, { role: 'user', content: '' })).toEqual([
      { role: 'user', content: '' },
      { role: 'assistant', content: '' },
      { role: 'user', content: '' },
    ]);
  });

  test('omitted thoughts come back in their signature; those of others cannot be read', async () => {
    const signature = `tandem-thoughts:${Buffer.from('hm').toString('base64')}`;
    const read = (...blocks: Fields[]) =>
      asking.messages(user, { role: 'assistant', content: [...blocks, text('So')] }, user);
    const own = { role: 'assistant', content: 'So', reasoning: 'hm' };
    expect(await read({ type: 'thinking', thinking: '', signature })).toEqual([user, own, user]);
    const bare = { role: 'assistant', content: 'So' };
    expect(await read({ type: 'thinking', thinking: '', signature: 'EqQ' })).toEqual([user, bare, user]);
    expect(await read({ type: 'redacted_thinking', data: 'EqQ' })).toEqual([user, bare, user]);
  });

  test('a last assistant message is continued', async () => {
    const last = { role: 'assistant', content: 'I am' };
    const { prompt } = await asking.input({ messages: [user, last] });
    expect(prompt).toMatchObject({
      messages: [user, last],
      render: { continueFinalMessage: true, addGenerationPrompt: false },
    });
    server.sessions.refuse = new SessionError(
      'bad_request',
      'continue_final_message is set but the final message does not appear!',
      'continue_final_message',
    );
    const refused = await asking.refusal({ messages: [user, last] });
    expect(refused).toMatchObject({
      status: 400,
      message: expect.stringMatching(/^messages: .*does not appear/) as string,
    });
    expect(refused.message).not.toContain('continue_final_message');
  });
});

describe('refusals', () => {
  const block = (content: Fields, role = 'user') => ({ messages: [{ role, content: [content] }] });
  const use = { type: 'tool_use', id: 'c', name: 'f', input: {} };

  test.each<[string, Fields]>([
    ['max_tokens', { max_tokens: undefined }],
    ['max_tokens', { max_tokens: 0 }],
    ['max_tokens', { max_tokens: '5' }],
    ['messages', { messages: undefined }],
    ['messages', { messages: [] }],
    ['messages.0', { messages: ['Hi'] }],
    ['messages.0.role', { messages: [{ content: 'Hi' }] }],
    ['messages.0.role', { messages: [{ role: 'tool', content: 'Hi' }] }],
    ['messages.0.content', { messages: [{ role: 'user' }] }],
    ['messages.0.content', { messages: [{ role: 'user', content: null }] }],
    ['messages.0.content.0', { messages: [{ role: 'user', content: ['Hi'] }] }],
    ['messages.0.content.0.type', block({ type: 'image', source: { type: 'url', url: 'x' } })],
    ['messages.0.content.0.type', block({ type: 'document', source: {} })],
    ['messages.0.content.0.type', block({})],
    ['messages.0.content.0.type', block(use)],
    ['messages.0.content.0.type', block({ type: '__proto__' })],
    ['messages.0.content.0.type', block({ type: 'server_tool_use', id: 'c', name: 'w', input: {} }, 'assistant')],
    ['messages.0.content.0.type', block({ type: 'tool_result', tool_use_id: 'c' }, 'assistant')],
    ['messages.0.content.0.text', block({ type: 'text' })],
    ['messages.0.content.0.text', block({ type: 'text', text: 1 })],
    ['messages.0.content.0.thinking', block({ type: 'thinking' }, 'assistant')],
    ['messages.0.content.0.input', block({ ...use, input: undefined }, 'assistant')],
    ['messages.0.content.0.input', block({ ...use, input: [] }, 'assistant')],
    ['messages.0.content.0.id', block({ ...use, id: 1 }, 'assistant')],
    ['messages.0.content.0.name', block({ ...use, name: null }, 'assistant')],
    ['messages.0', block(use, 'assistant')],
    ['messages.0.content.0.tool_use_id', block({ type: 'tool_result', content: 'x' })],
    ['messages.0.content.0.is_error', block({ type: 'tool_result', tool_use_id: 'c', is_error: 'yes' })],
    ['messages.0.content.0.content', block({ type: 'tool_result', tool_use_id: 'c', content: 1 })],
    ['messages.0.content.0.content.0', block({ type: 'tool_result', tool_use_id: 'c', content: ['x'] })],
    [
      'messages.0.content.0.content.0.type',
      block({ type: 'tool_result', tool_use_id: 'c', content: [{ type: 'image' }] }),
    ],
    ['system', { system: 1 }],
    ['system.0.type', { system: [{ type: 'image' }] }],
    ['tools.0.type', { tools: [{ type: 'web_search_20250305', name: 'web_search' }] }],
    ['tools.0.type', { tools: [{ type: 'bash_20250124', name: 'bash' }] }],
    ['tools.0.name', { tools: [{ input_schema: {} }] }],
    ['tools.0.input_schema', { tools: [{ name: 'f' }] }],
    ['tools.0.input_schema', { tools: [{ name: 'f', input_schema: [] }] }],
    ['tools.0.description', { tools: [{ ...tools[0], description: 1 }] }],
    ['tools.0.strict', { tools: [{ ...tools[0], strict: 'yes' }] }],
    ['tools.0.defer_loading', { tools: [{ ...tools[0], defer_loading: true }] }],
    ['tools.0.input_examples', { tools: [{ ...tools[0], input_examples: [{}] }] }],
    ['tools.0.allowed_callers', { tools: [{ ...tools[0], allowed_callers: ['code_execution_20250825'] }] }],
    ['tool_choice', { tool_choice: 'auto' }],
    ['tool_choice', { tool_choice: { type: 'any' } }],
    ['tool_choice.type', { tools, tool_choice: { type: 'required' } }],
    ['tool_choice.name', { tools, tool_choice: { type: 'tool' } }],
    ['tool_choice.name', { tools, tool_choice: { type: 'tool', name: 'g' } }],
    ['thinking.type', { thinking: { type: 'on' } }],
    ['thinking.type', { thinking: {} }],
    ['thinking.budget_tokens', { thinking: { type: 'enabled', budget_tokens: 0 } }],
    ['output_config.effort', { output_config: { effort: 'none' } }],
    ['output_config.format.type', { output_config: { format: { type: 'xml', schema: {} } } }],
    ['output_config.format.schema', { output_config: { format: { type: 'json_schema' } } }],
    ['stop_sequences', { stop_sequences: 'x' }],
    ['stop_sequences', { stop_sequences: [''] }],
    ['stop_sequences', { stop_sequences: Array.from({ length: 65 }, (_, at) => `${at}`) }],
    ['temperature', { temperature: -1 }],
    ['top_p', { top_p: 0 }],
    ['top_k', { top_k: -2 }],
    ['metadata', { metadata: 'x' }],
    ['metadata.user_id', { metadata: { user_id: 1 } }],
    ['service_tier', { service_tier: 'priority' }],
    ['container', { container: 'c' }],
    ['mcp_servers', { mcp_servers: [{ type: 'url', url: 'x', name: 'n' }] }],
    ['context_management', { context_management: { edits: [{ type: 'clear_tool_uses_20250919' }] } }],
    ['context_management', { context_management: { edits: [{ type: 'clear_thinking_20251015' }] } }],
    ['speed', { speed: 'fast' }],
    ['inference_geo', { inference_geo: 'us' }],
    ['fallbacks', { fallbacks: [{ model: 'x' }] }],
    ...['compaction', 'fallback_credit_token', 'thread', 'billing_policy', 'user_profile_id', 'workspace_id'].map(
      (name): [string, Fields] => [name, { [name]: 'x' }],
    ),
    ['structured_outputs', { structured_outputs: { regx: 'a' } }],
    ['structured_outputs', { structured_outputs: { regex: 'a' }, tools, tool_choice: { type: 'any' } }],
    ['engine_xargs', { engine_xargs: { nobody: 1 } }],
    ['vllm_xargs', { vllm_xargs: { nobody: 1 } }],
    ['cache_control', { cache_control: 'ephemeral' }],
    ['chat_template_kwargs', { chat_template_kwargs: { tools: [] } }],
    ['diagnostics', { diagnostics: { previous_message_id: 'm' } }],
    ['chat_template', { chat_template: 'x' }],
    ['priority', { priority: 1 }],
  ])('%s', async (field, fields) => {
    for (const stream of [false, true]) {
      const { status, type, message } = await asking.refusal({ ...fields, stream });
      expect([status, type]).toEqual([400, 'invalid_request_error']);
      expect(message).toContain(field);
    }
  });

  test.each(['__proto__', 'constructor', 'hasOwnProperty'])('%s is a key like any other', async (key) => {
    const body = `{"max_tokens":5,"messages":[{"role":"user","content":"Hi"}],"${key}":{"container":"x"}}`;
    expect((await server.post(PATH, body)).status).toBe(200);
  });

  test('what sessions refuse is told by the fields of this endpoint', async () => {
    server.sessions.refuse = new SessionError('context_length', 'Too many tokens.', 'input_tokens');
    expect(await asking.refusal({})).toMatchObject({ status: 400, message: 'prompt is too long: Too many tokens.' });
    server.sessions.refuse = new SessionError('queue_full', 'Full.', null, 2);
    expect(await asking.refusal({})).toEqual({ status: 429, type: 'rate_limit_error', message: 'Full.' });
    server.sessions.refuse = new SessionError('unavailable', 'Starting.', null, 2);
    expect(await asking.refusal({})).toEqual({ status: 503, type: 'overloaded_error', message: 'Starting.' });
    const parameters = 'tools.1.function.parameters';
    server.sessions.refuse = new SessionError('bad_request', `${parameters}.x cannot be strict: why.`, parameters);
    expect(await asking.refusal({})).toMatchObject({ message: 'tools.1.input_schema.x cannot be strict: why.' });
    server.sessions.refuse = new SessionError('bad_request', 'No strict tools.', 'tools.0.function.strict');
    expect(await asking.refusal({})).toMatchObject({ message: 'tools.0.strict: No strict tools.' });
  });

  test('a model that is not there, a body that is too deep or too large', async () => {
    expect(await asking.refusal({ model: 'none' })).toMatchObject({ status: 404, type: 'not_found_error' });
    expect(await asking.refusal({ model: 'none' }, COUNT)).toMatchObject({ status: 404, type: 'not_found_error' });
    const deep: unknown = JSON.parse('['.repeat(130) + ']'.repeat(130));
    expect(await asking.refusal({ tools: deep })).toMatchObject({ status: 400, type: 'invalid_request_error' });
    const large = { messages: [{ role: 'user', content: 'x'.repeat(200_000) }] };
    expect(await asking.refusal(large)).toMatchObject({ status: 413, type: 'request_too_large' });
    const many = await asking.refusal({ messages: Array.from({ length: 16_385 }, () => 1) });
    expect(many).toMatchObject({ status: 400, message: expect.stringContaining('16384') as string });
  });
});

describe('count_tokens', () => {
  const prompt = { system: 'S', tools, thinking: { type: 'disabled' } };
  const count = async (fields: Fields) => {
    const response = await server.post(COUNT, { messages: HI['messages'], ...fields });
    return [response.status, await response.json()];
  };

  test('is of the prompt that the message would have', async () => {
    const sent = await asking.input(prompt);
    expect(await count(prompt)).toEqual([200, { input_tokens: 2 }]);
    expect(server.sessions.tokenized.at(-1)).toEqual(sent.prompt);
    const continued = [
      { role: 'user', content: 'Hi' },
      { role: 'assistant', content: 'I' },
    ];
    await count({ messages: continued });
    expect(server.sessions.tokenized.at(-1)).toMatchObject({ render: { continueFinalMessage: true } });
  });

  test.each<[string, Fields]>([
    ['messages', { messages: undefined }],
    ['messages.0.content.0.type', { messages: [{ role: 'user', content: [{ type: 'image' }] }] }],
    ['tools.0.type', { tools: [{ type: 'computer_20250124', name: 'computer' }] }],
    ['tool_choice.name', { tools, tool_choice: { type: 'tool', name: 'g' } }],
    ['at most 1024', { tools: Array.from({ length: 1025 }, (_, i) => ({ name: `f${i}`, input_schema: {} })) }],
    ['context_management', { context_management: { edits: [{}] } }],
  ])('%s is refused', async (field, fields) => {
    const { status, message } = await asking.refusal(fields, COUNT);
    expect([status, message.includes(field)]).toEqual([400, true]);
  });
});

test('every field has a place in these tests, and in docs/messages.md', () => {
  const own = readFileSync(fileURLToPath(import.meta.url), 'utf8');
  const page = readFileSync(new URL('../../../docs/messages.md', import.meta.url), 'utf8');
  for (const source of [own, page]) {
    expect([...messagesFields].filter((field) => !new RegExp(`\\b${field}\\b`).test(source))).toEqual([]);
  }
});
