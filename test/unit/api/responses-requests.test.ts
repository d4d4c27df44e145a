/** What a request to /v1/responses means: the chat that it is, its items as messages, what is refused. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { writeJson } from '../../../src/control/json-numbers.ts';
import { SessionError } from '../../../src/control/sessions/session.ts';
import { responsesFields } from '../../../src/schemas/responses.ts';
import { delta, errorOf, FakeSessions, startTestServer, type TestServer } from './fakes.ts';
import { Asking, PATH, twoEntities } from './responses-asking.ts';

let server: TestServer;
const asking = new Asking(() => server);
beforeAll(async () => {
  server = await startTestServer({ maxBodyBytes: 100_000 }, { keys: twoEntities });
});
afterAll(() => server.close());
beforeEach(() => {
  server.sessions.script = new FakeSessions().script;
  server.sessions.refuse = null;
  server.responses.failure = null;
  server.responses.keeps = true;
});

const tools = [{ type: 'function', name: 'f', description: 'F', parameters: { type: 'object' }, strict: true }];
const chatTools = [
  { type: 'function', function: { name: 'f', description: 'F', parameters: { type: 'object' }, strict: true } },
];

describe('what a request means', () => {
  test('it is the generation of the chat that asks for the same', async () => {
    const schema = { type: 'object', properties: { x: { type: 'number', multipleOf: 1.0 } } };
    const shared = {
      ...{ temperature: 0.5, top_p: 0.9, top_k: 3, min_p: 0.1, seed: 7, min_tokens: 2, ignore_eos: true },
      ...{ frequency_penalty: 0.1, presence_penalty: 0.2, repetition_penalty: 1.1, logit_bias: { 5: 1 } },
      ...{
        stop: ['x'],
        stop_token_ids: [3],
        include_stop_str_in_output: true,
        bad_words: ['y'],
        allowed_token_ids: [1],
      },
      ...{
        skip_special_tokens: false,
        spaces_between_special_tokens: true,
        logprobs_mode: 'processed',
        cache_salt: 's',
      },
      ...{ repetition_detection: { max_pattern_size: 2, min_count: 3 }, chat_template_kwargs: { a: 1 }, priority: 0 },
    };
    const own = await asking.input({
      ...shared,
      instructions: 'Be kind.',
      tools,
      tool_choice: { type: 'function', name: 'f' },
      parallel_tool_calls: false,
      reasoning: { effort: 'low' },
      max_output_tokens: 9,
      include: ['message.output_text.logprobs'],
      top_logprobs: 2,
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
      reasoning_effort: 'low',
      max_completion_tokens: 9,
      logprobs: true,
      top_logprobs: 2,
    });
    const chat = server.sessions.inputs.at(-1);
    if (!chat) throw new Error('no chat');
    expect(own).toEqual({ ...chat, sampling: { ...chat.sampling, maxTokensField: 'max_output_tokens' } });
    const constrained = await asking.input({ text: { format: { type: 'json_schema', name: 'n', schema } } });
    const response_format = { type: 'json_schema', json_schema: { name: 'n', schema } };
    await server.post('/v1/chat/completions', { messages: [{ role: 'user', content: 'Hi' }], response_format });
    const { constraint } = server.sessions.inputs.at(-1) ?? {};
    expect(constrained.constraint).toEqual({ ...constraint, param: 'text.format.schema' });
  });

  test('a request of nothing but input asks for the defaults, and nulls ask for nothing', async () => {
    const plain = await asking.input({});
    expect(plain).toMatchObject({ reply: { tools: 'none', includeReasoning: true }, constraint: null, priority: 0 });
    const nulls = [
      ...['instructions', 'previous_response_id', 'max_output_tokens', 'tools', 'tool_choice', 'parallel_tool_calls'],
      ...[
        'max_tool_calls',
        'text',
        'reasoning',
        'top_logprobs',
        'include',
        'stream',
        'stream_options',
        'store',
        'metadata',
      ],
      ...[
        'truncation',
        'service_tier',
        'safety_identifier',
        'prompt_cache_key',
        'prompt_cache_retention',
        'background',
      ],
      ...['conversation', 'prompt', 'context_management', 'model', 'temperature', 'top_p', 'user'],
    ];
    expect(await asking.input(Object.fromEntries(nulls.map((name) => [name, null])))).toEqual(plain);
    const nested = { text: { format: null, verbosity: null }, reasoning: { effort: null, summary: null } };
    expect(await asking.input(nested)).toEqual(plain);
  });

  test('numbers of schemas and tools stay as they were written', async () => {
    const number = '{"type":"object","properties":{"x":{"type":"number","multipleOf":1.0}}}';
    const format = `{"type":"json_schema","name":"n","schema":${number}}`;
    const tool = `{"type":"function","name":"f","parameters":${number}}`;
    const response = await server.post(PATH, `{"input":"Hi","text":{"format":${format}},"tools":[${tool}]}`);
    const answer = (await response.json()) as { tools: object[]; text: object };
    expect(answer).toMatchObject({ tools: [{ name: 'f' }], text: { format: { name: 'n' } } });
    const { constraint, prompt } = server.sessions.inputs.at(-1) ?? {};
    expect(writeJson(constraint?.grammar.source)).toContain('1.0');
    expect(writeJson(prompt)).toContain('"multipleOf":1.0');
  });

  test('what clients send that has no effect changes nothing', async () => {
    const idle = {
      tools: [],
      tool_choice: 'auto',
      include: ['reasoning.encrypted_content', 'file_search_call.results'],
      reasoning: { summary: 'auto' },
      text: { format: { type: 'text' } },
      truncation: 'disabled',
      service_tier: 'auto',
      background: false,
      max_tool_calls: 3,
      metadata: { a: 'b' },
      user: 'u',
      safety_identifier: 's',
      prompt_cache_key: 'k',
      prompt_cache_retention: 'in_memory',
      context_management: [],
      stream_options: {},
    };
    expect(await asking.input(idle)).toEqual(await asking.input({}));
  });

  test('verbosity and effort are variables of the template, and the effort none turns thinking off', async () => {
    const { prompt } = await asking.input({ text: { verbosity: 'low' }, reasoning: { effort: 'none' } });
    expect(prompt.render.templateKwargs).toEqual({
      verbosity: 'low',
      reasoning_effort: 'none',
      enable_thinking: false,
    });
  });

  test('functions of a namespace have it before their names, and calls of them are told apart', async () => {
    const namespace = { type: 'namespace', name: 'n', description: 'All.', tools };
    server.sessions.script = () => [
      delta({ toolCalls: [{ index: 0, id: 'c', name: 'n__f', arguments: '{}' }], tokenIds: [1], finish: 'tool_calls' }),
    ];
    const { output, tools: shown } = await asking.answer({ tools: [namespace, ...tools] });
    const { prompt } = server.sessions.inputs.at(-1) ?? {};
    expect(prompt).toMatchObject({
      render: {
        tools: [{ function: { name: 'n__f', description: 'All. F', strict: true } }, { function: { name: 'f' } }],
      },
    });
    expect(shown).toEqual([namespace, ...tools]);
    expect(output).toMatchObject([{ type: 'function_call', namespace: 'n', name: 'f', call_id: 'c' }]);
    const [, reply] = await asking.messages([{ role: 'user', content: 'x' }, ...output]);
    expect(reply).toMatchObject({ tool_calls: [{ function: { name: 'n__f' } }] });
  });

  test('allowed_tools leaves the others out', async () => {
    const two = [...tools, { ...tools[0], name: 'g' }];
    const choice = (mode: string) => ({ type: 'allowed_tools', mode, tools: [{ type: 'function', name: 'g' }] });
    const input = await asking.input({ tools: two, tool_choice: choice('required') });
    expect(input.reply?.tools).toBe('required');
    expect(input.prompt.render.tools).toMatchObject([{ function: { name: 'g' } }]);
    expect((await asking.input({ tools: two, tool_choice: choice('auto') })).reply?.tools).toBe('auto');
  });

  test('a choice names functions of namespaces as the calls do, or by their own names where these are enough', async () => {
    const [first] = tools;
    const named = [...tools, { type: 'namespace', name: 'n', tools: [{ ...first, name: 'g' }, ...tools] }];
    const both = [...named, { type: 'namespace', name: 'm', tools: [{ ...first, name: 'g' }] }];
    const chosen = async (choice: object, among = named) =>
      (await asking.input({ tools: among, tool_choice: { type: 'function', ...choice } })).reply?.tools;
    expect(await chosen({ name: 'g' })).toEqual({ named: 'n__g' });
    expect(await chosen({ name: 'n__g' })).toEqual({ named: 'n__g' });
    expect(await chosen({ name: 'f' })).toEqual({ named: 'f' });
    expect(await chosen({ name: 'f', namespace: 'n' })).toEqual({ named: 'n__f' });
    expect(await chosen({ name: 'g', namespace: 'm' }, both)).toEqual({ named: 'm__g' });
    for (const choice of [{ name: 'g' }, { name: 'f', namespace: 'x' }]) {
      const body = { input: 'Hi', tools: both, tool_choice: { type: 'function', ...choice } };
      expect((await server.post(PATH, body)).status).toBe(400);
    }
    const allowed = [
      { type: 'function', name: 'g' },
      { type: 'function', name: 'f', namespace: 'n' },
    ];
    const input = await asking.input({
      tools: named,
      tool_choice: { type: 'allowed_tools', mode: 'auto', tools: allowed },
    });
    expect(input.prompt.render.tools).toMatchObject([{ function: { name: 'n__g' } }, { function: { name: 'n__f' } }]);
  });

  test('unknown keys are named in a header', async () => {
    const response = await server.post(PATH, {
      input: 'Hi',
      max_tokens: 3,
      text: { colour: 1 },
      reasoning: { depth: 2 },
    });
    expect(response.headers.get('x-tandem-ignored-fields')).toBe('max_tokens, text.colour, reasoning.depth');
  });
});

test('fields of a chat that this endpoint does not have do nothing', async () => {
  const stray = { n: 2, use_beam_search: true, length_penalty: 'x', prompt_logprobs: 1, kv_transfer_params: 'x' };
  expect(await asking.input({ input: 'Hi', ...stray })).toEqual(await asking.input({ input: 'Hi' }));
  expect((await server.post(PATH, { input: 'Hi', n: 'x' })).status).toBe(200);
});

describe('items as messages', () => {
  const fc = (id: string, args = '{}') => ({ type: 'function_call', call_id: id, name: 'f', arguments: args });
  const toolCall = (id: string, args = '{}') => ({ id, type: 'function', function: { name: 'f', arguments: args } });
  const thoughts = { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'hm' }] };
  const said = (text: string) => ({
    type: 'message',
    id: 'msg_1',
    status: 'completed',
    role: 'assistant',
    content: [{ type: 'output_text', text, annotations: [], logprobs: [] }],
  });

  test('easy messages, messages of parts, and all roles', async () => {
    const input = [
      { role: 'developer', content: 'D' },
      { type: 'message', role: 'system', content: [{ type: 'input_text', text: 'S' }] },
      {
        role: 'user',
        content: [
          { type: 'input_text', text: 'a' },
          { type: 'text', text: 'b' },
        ],
      },
      { role: 'assistant', content: 'A' },
      { role: 'user', content: 'B' },
    ];
    expect(await asking.messages(input, { instructions: 'I' })).toEqual([
      { role: 'system', content: 'I' },
      { role: 'developer', content: 'D' },
      { role: 'system', content: 'S' },
      {
        role: 'user',
        content: [
          { type: 'text', text: 'a' },
          { type: 'text', text: 'b' },
        ],
      },
      { role: 'assistant', content: 'A' },
      { role: 'user', content: 'B' },
    ]);
  });

  test('reasoning, text and calls of one reply are one message', async () => {
    const input = [
      { role: 'user', content: 'Q' },
      thoughts,
      said('So'),
      fc('1', '{"x":1}'),
      fc('2'),
      { type: 'function_call_output', call_id: '1', output: 'one' },
      { type: 'function_call_output', call_id: '2', output: [{ type: 'input_text', text: 'two' }] },
      said('Done'),
    ];
    expect(await asking.messages(input)).toEqual([
      { role: 'user', content: 'Q' },
      { role: 'assistant', content: 'So', reasoning: 'hm', tool_calls: [toolCall('1', '{"x":1}'), toolCall('2')] },
      { role: 'tool', tool_call_id: '1', content: 'one' },
      { role: 'tool', tool_call_id: '2', content: 'two' },
      { role: 'assistant', content: 'Done' },
    ]);
  });

  test('two replies in a row stay two', async () => {
    expect(await asking.messages([said('a'), said('b'), thoughts, said('c')])).toEqual([
      { role: 'assistant', content: 'a' },
      { role: 'assistant', content: 'b' },
      { role: 'assistant', content: 'c', reasoning: 'hm' },
    ]);
  });

  test('thoughts come back as text or as what encrypted_content carried', async () => {
    server.sessions.script = () => [delta({ reasoning: 'hé 🤔', text: 'Yes', tokenIds: [1], finish: 'stop' })];
    const { output } = await asking.answer({ include: ['reasoning.encrypted_content'], store: false });
    expect(output).toMatchObject([
      { type: 'reasoning', content: [{ type: 'reasoning_text', text: 'hé 🤔' }] },
      { type: 'message' },
    ]);
    const bare = output.map((item) => (item.type === 'reasoning' ? { ...item, content: undefined } : item));
    const reply = { role: 'assistant', content: 'Yes', reasoning: 'hé 🤔' };
    expect((await asking.messages([...output, { role: 'user', content: 'And?' }]))[0]).toEqual(reply);
    expect((await asking.messages([...bare, { role: 'user', content: 'And?' }]))[0]).toEqual(reply);
  });

  test('where a reasoning item has nothing else, its summary stands for the thoughts', async () => {
    const summary = ['First.', 'Then.'].map((text) => ({ type: 'summary_text', text }));
    const thought = (more: object) =>
      asking.messages([
        { type: 'reasoning', summary, ...more },
        { role: 'user', content: 'x' },
      ]);
    expect((await thought({}))[0]).toMatchObject({ reasoning: 'First.\n\nThen.' });
    const content = [{ type: 'reasoning_text', text: 'All of it' }];
    expect((await thought({ content }))[0]).toMatchObject({ reasoning: 'All of it' });
  });

  test('very many items, and names that objects inherit', async () => {
    const input = JSON.parse(
      `[${'{"role":"user","content":"x"},'.repeat(2000)}{"role":"user","content":"y","__proto__":{"a":1},"constructor":1}]`,
    ) as unknown;
    expect(await asking.messages(input)).toHaveLength(2001);
    const hidden = JSON.parse('[{"__proto__":{"role":"user","content":"x"}}]') as unknown;
    expect((await errorOf(await server.post(PATH, JSON.stringify({ input: hidden })))).param).toBe('input[0].type');
  });
});

describe('refused', () => {
  const message = (part: object) => ({
    input: [
      { role: 'user', content: 'x' },
      { role: 'user', content: [part] },
    ],
  });
  const format = (fields: object) => ({ text: { format: { type: 'json_schema', ...fields } } });
  test.each<[string, object, number?]>([
    ['input', { input: [] }],
    ['input', { input: undefined }],
    ['input', { input: 5 }],
    ['input[1]', { input: [{ role: 'user', content: 'x' }, 'y'] }],
    ['input[0].type', { input: [{}] }],
    ['input[0].type', { input: [{ type: 'web_search_call', id: 'ws_1' }] }],
    ['input[0].role', { input: [{ role: 'critic', content: 'x' }] }],
    ['input[0].content', { input: [{ role: 'user' }] }],
    ['input[0].content', { input: [{ role: 'user', content: 5 }] }],
    ['input[1].content[0].type', message({ type: 'input_image', image_url: 'x' })],
    ['input[1].content[0].type', message({ type: 'input_file', file_id: 'x' })],
    ['input[1].content[0].type', message({ type: 'blob' })],
    ['input[1].content[0].type', message({})],
    ['input[1].content[0].text', message({ type: 'input_text' })],
    ['input[0].call_id', { input: [{ type: 'function_call', name: 'f', arguments: '{}' }] }],
    ['input[0].arguments', { input: [{ type: 'function_call', call_id: '1', name: 'f', arguments: {} }] }],
    ['input[0].output', { input: [{ type: 'function_call_output', call_id: '1' }] }],
    [
      'input[0].output[0].type',
      { input: [{ type: 'function_call_output', call_id: '1', output: [{ type: 'input_image' }] }] },
    ],
    ['input[0].encrypted_content', { input: [{ type: 'reasoning', summary: [], encrypted_content: 'gAAAA' }] }],
    ['input[0].content[0].text', { input: [{ type: 'reasoning', content: [{}] }] }],
    ['input[0].summary', { input: [{ type: 'reasoning', summary: 'short' }] }],
    ['input[0].summary[0].text', { input: [{ type: 'reasoning', summary: [{}], content: [] }] }],
    ['input[0].id', { input: [{ role: 'user', content: 'x', id: 5 }] }],
    ['input[0].id', { input: [{ type: 'item_reference', id: 'msg_nothing_0' }] }, 404],
    ['input[0].id', { input: [{ type: 'item_reference', id: 'x'.repeat(1000) }] }, 404],
    ['input[0].id', { input: [{ type: 'item_reference' }] }],
    [
      'input[1].id',
      {
        input: [
          { role: 'user', content: 'x' },
          { type: 'item_reference', id: 5 },
        ],
      },
    ],
    ['previous_response_id', { previous_response_id: 'resp_nothing' }, 404],
    ['instructions', { instructions: ['x'] }],
    ...[
      'web_search',
      'web_search_preview',
      'file_search',
      'computer_use_preview',
      'code_interpreter',
      'mcp',
      'local_shell',
      'custom',
    ].map((type): [string, object] => ['tools[1].type', { tools: [...tools, { type, name: 'x' }] }]),
    ['tools[0].type', { tools: [{ name: 'f' }] }],
    ['tools[0].name', { tools: [{ type: 'function' }] }],
    ['tools[0].tools', { tools: [{ type: 'namespace', name: 'n' }] }],
    ['tools[0].tools[0].type', { tools: [{ type: 'namespace', name: 'n', tools: [{ type: 'custom', name: 'x' }] }] }],
    [
      'tools',
      {
        tools: [
          { type: 'namespace', name: 'n', tools },
          { ...tools[0], name: 'n__f' },
        ],
      },
    ],
    [
      'input[0].namespace',
      { input: [{ type: 'function_call', call_id: '1', namespace: 5, name: 'f', arguments: '' }] },
    ],
    ['tools[0].parameters', { tools: [{ type: 'function', name: 'f', parameters: 'x' }] }],
    ['tools[0].strict', { tools: [{ type: 'function', name: 'f', strict: 'x' }] }],
    ['tool_choice', { tool_choice: 'required' }],
    ['tool_choice', { tools, tool_choice: 'some' }],
    ['tool_choice', { tools, tool_choice: { type: 'function', name: 'g' } }],
    ['tool_choice.name', { tools, tool_choice: { type: 'function' } }],
    ['tool_choice.type', { tools, tool_choice: { type: 'web_search_preview' } }],
    ['tool_choice.mode', { tools, tool_choice: { type: 'allowed_tools', mode: 'x', tools } }],
    ['tool_choice.tools', { tools, tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [] } }],
    ['tool_choice.tools[0]', { tools, tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [{ type: 'mcp' }] } }],
    ['text.format.type', { text: { format: { type: 'grammar' } } }],
    ['text.format.name', format({ schema: {} })],
    ['text.format.schema', format({ name: 'n' })],
    ['text.format.schema', format({ name: 'n', schema: 5 })],
    ['text.verbosity', { text: { verbosity: 'loud' } }],
    ['structured_outputs', { text: { format: { type: 'json_object' } }, structured_outputs: { regex: 'a' } }],
    ['reasoning.effort', { reasoning: { effort: 'huge' } }],
    ['reasoning.summary', { reasoning: { summary: 'detailed' } }],
    ['reasoning.generate_summary', { reasoning: { summary: 'auto', generate_summary: 'concise' } }],
    ['max_output_tokens', { max_output_tokens: 0 }],
    ['max_tool_calls', { max_tool_calls: 0 }],
    ['temperature', { temperature: -1 }],
    ['top_p', { top_p: 0 }],
    ['top_logprobs', { top_logprobs: 2 }],
    ['top_logprobs', { include: ['message.output_text.logprobs'], top_logprobs: 21 }],
    ['include[1]', { include: ['message.output_text.logprobs', 'everything'] }],
    ['stream_options', { stream_options: { include_obfuscation: false } }],
    ['stream_options.include_obfuscation', { stream: true, stream_options: { include_obfuscation: true } }],
    ['background', { background: true }],
    ['conversation', { conversation: 'conv_1' }],
    ['prompt', { prompt: { id: 'p' } }],
    ['context_management', { context_management: [{ type: 'compaction' }] }],
    ['truncation', { truncation: 'some' }],
    ['service_tier', { service_tier: 'flex' }],
    ['prompt_cache_retention', { prompt_cache_retention: '24h' }],
    ['metadata', { metadata: { ['k'.repeat(65)]: 'v' } }],
    ['metadata', { metadata: Object.fromEntries(Array.from({ length: 17 }, (_, at) => [`k${at}`, 'v'])) }],
    ['metadata.k', { metadata: { k: 'v'.repeat(513) } }],
    ['metadata.k', { metadata: { k: 5 } }],
    ['user', { user: 'u'.repeat(2000) }],
    ['priority', { priority: 1 }],
    ['chat_template', { chat_template: 'x' }],
    ['chat_template_kwargs', { chat_template_kwargs: { tools: 1 } }],
    ['engine_xargs', { engine_xargs: { nobody: 1 } }],
    ['vllm_xargs', { vllm_xargs: { nobody: 1 } }],
    ['request_id', { request_id: 'a\nb' }],
    ['store', { store: 'yes' }],
    ['model', { model: 'nobody' }, 404],
  ])('%s: %j', async (param, fields, status = 400) => {
    const before = server.sessions.inputs.length;
    const response = await server.post(PATH, { input: 'Hi', ...fields });
    const error = await errorOf(response);
    expect([response.status, error.param, error.code]).toEqual([status, param, status]);
    expect(error.message.length).toBeLessThan(500);
    expect(server.sessions.inputs).toHaveLength(before);
    // As a stream too: before the 200.
    const streamed = { input: 'Hi', stream: true, ...fields };
    if (!('stream_options' in fields)) expect((await server.post(PATH, streamed)).status).toBe(status);
  });

  test('every field has a place in these tests', () => {
    const text = readFileSync(fileURLToPath(import.meta.url), 'utf8');
    expect([...responsesFields].filter((field) => !new RegExp(`\\b${field}\\b`).test(text))).toEqual([]);
  });

  test('min_tokens is compared with the field of this endpoint', async () => {
    const error = await errorOf(await server.post(PATH, { input: 'Hi', max_output_tokens: 5, min_tokens: 6 }));
    const message = 'min_tokens must be less than or equal to max_output_tokens=5, got 6.';
    expect(error).toMatchObject({ param: 'min_tokens', message });
  });

  test('what sessions refuse names the fields of this endpoint', async () => {
    server.sessions.refuse = new SessionError('bad_request', 'The template cannot show it.', 'messages');
    expect(await errorOf(await server.post(PATH, { input: 'Hi' }))).toMatchObject({ param: 'input', code: 400 });
    const named = { type: 'namespace', name: 'n', tools: [{ type: 'function', name: 'g' }, ...tools] };
    const choice = { type: 'allowed_tools', mode: 'required', tools: [{ type: 'function', name: 'n__f' }] };
    for (const [at, place, more] of [
      [0, 'tools[0].parameters', {}],
      [2, 'tools[1].tools[1].parameters', {}],
      // The others are not among those that sessions see.
      [0, 'tools[1].tools[1].parameters', { tool_choice: choice }],
    ] as const) {
      const param = `tools.${at}.function.parameters`;
      server.sessions.refuse = new SessionError('bad_request', `${param} must describe an object.`, param);
      const error = await errorOf(await server.post(PATH, { input: 'Hi', tools: [tools[0], named], ...more }));
      expect(error).toMatchObject({ param: place, message: `${place} must describe an object.`, code: 400 });
    }
    server.sessions.refuse = new SessionError('queue_full', 'Full.', null, 3);
    expect((await server.post(PATH, { input: 'Hi', stream: true })).headers.get('retry-after')).toBe('3');
  });
});
