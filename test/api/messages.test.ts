/** The Messages API by Anthropic's client against the real server and the starter model. */
import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { API_KEY, ApiServer, waitFor } from './server.ts';

let server: ApiServer;
let client: Anthropic;
beforeAll(async () => {
  server = await ApiServer.start();
  client = new Anthropic({ apiKey: API_KEY, baseURL: server.url, maxRetries: 0 });
}, 90_000);
afterAll(() => server.stop());

type Body = Anthropic.MessageCreateParamsNonStreaming;
const user = (content: string) => ({ role: 'user' as const, content });
/** Newer versions of the client know no temperature. */
const greedy: object = { temperature: 0 };
const hello: Body = { ...greedy, model: 'starter', max_tokens: 32, messages: [user('Hello! What can you do?')] };
const input_schema = {
  type: 'object' as const,
  properties: { size: { type: 'string', enum: ['small', 'medium', 'large'] }, repeat: { type: 'boolean' } },
  required: ['size', 'repeat'],
  additionalProperties: false,
};
const tools: Anthropic.Tool[] = [{ name: 'lock_weather', description: 'Lock the weather.', input_schema }];
const weather: Body = {
  ...hello,
  tools,
  messages: [user('Lock the weather: repeat yes, size large.')],
  max_tokens: 120,
};
const thinking: Body = {
  ...hello,
  thinking: { type: 'enabled', budget_tokens: 1024 },
  messages: [user('Reverse the word tro.')],
  max_tokens: 120,
};

/** By what is random, and by what was cached. */
function comparable({ content, stop_reason, usage }: Anthropic.Message): object {
  const { input_tokens, cache_read_input_tokens, output_tokens } = usage;
  const blocks = content.map((block) => ({ ...block, ...('id' in block ? { id: '' } : {}) }));
  return { blocks, stop_reason, tokens: [input_tokens + (cache_read_input_tokens ?? 0), output_tokens] };
}

function textOf({ content }: Anthropic.Message): string {
  return content.map((block) => (block.type === 'text' ? block.text : '')).join('');
}

/** Whole and streamed, which are the same. */
async function both(body: Body): Promise<Anthropic.Message> {
  const whole = await client.messages.create(body);
  const streamed = await client.messages.stream(body).finalMessage();
  expect(comparable(streamed)).toEqual(comparable(whole));
  return whole;
}

test('a text, whole and streamed, is the answer of the chat, and its prompt is counted', async () => {
  const whole = await both(hello);
  expect(whole).toMatchObject({ type: 'message', role: 'assistant', model: 'starter', stop_reason: 'end_turn' });
  expect(whole.id).toMatch(/^msg_[0-9a-f]{32}$/);
  const chat = await server.post('/v1/chat/completions', { ...hello, max_completion_tokens: 32 });
  const { choices, usage } = (await chat.json()) as {
    choices: { message: { content: string } }[];
    usage: { prompt_tokens: number; completion_tokens: number };
  };
  expect(textOf(whole)).toBe(choices[0]?.message.content);
  expect(comparable(whole)).toMatchObject({ tokens: [usage.prompt_tokens, usage.completion_tokens] });
  const { input_tokens } = await client.messages.countTokens({ model: 'starter', messages: hello.messages });
  expect(input_tokens).toBe(usage.prompt_tokens);
});

test('why it ended: the limit, a stop sequence, the end of the context', async () => {
  expect(await both({ ...hello, max_tokens: 4 })).toMatchObject({ stop_reason: 'max_tokens' });
  const stopped = await both({ ...hello, stop_sequences: ['never', 'can'] });
  expect(stopped).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: 'can' });
  const endless = { ...hello, max_tokens: 2000, ...({ ignore_eos: true } as object) };
  const long = await client.messages.create(endless);
  expect(long.stop_reason).toBe('model_context_window_exceeded');
  expect(comparable(long)).toMatchObject({ tokens: [expect.any(Number), 1024 - 19] });
});

test('a call, its result, and the reply', async () => {
  const asked = await both(weather);
  const [call] = asked.content;
  if (call?.type !== 'tool_use') throw new Error('no call');
  expect(call).toMatchObject({ name: 'lock_weather', input: { size: 'large', repeat: true } });
  expect([call.id.slice(0, 6), asked.stop_reason]).toEqual(['toolu_', 'tool_use']);
  const result = { type: 'tool_result' as const, tool_use_id: call.id, content: '{"temperature": 23}' };
  const reply = await client.messages.create({
    ...weather,
    messages: [...weather.messages, { role: 'assistant', content: asked.content }, { role: 'user', content: [result] }],
  });
  expect(textOf(reply)).toContain('23');
  expect(reply.usage.cache_read_input_tokens).toBeGreaterThan(0);
});

test('the tool runner of the client does without the thread that it asks for first', async () => {
  const sizes: unknown[] = [];
  const run = ({ size }: { size: string }): string => {
    sizes.push(size);
    return '{"temperature": 23}';
  };
  const runnable = tools.map((tool) => ({ ...tool, type: 'custom' as const, run, parse: (input: unknown) => input }));
  for (const stream of [false, true]) {
    const body = { ...weather, stream, tools: runnable, max_iterations: 2 };
    const runner = client.beta.messages.toolRunner(
      body as unknown as Parameters<typeof client.beta.messages.toolRunner>[0],
    );
    const last = await runner.runUntilDone();
    expect(JSON.stringify(last.content)).toContain('23');
  }
  expect(sizes).toEqual(['large', 'large']);
});

test('tool_choice asks for a call or forbids it', async () => {
  const one = { type: 'any' as const, disable_parallel_tool_use: true };
  for (const tool_choice of [one, { type: 'tool' as const, name: 'lock_weather' }]) {
    const { content, stop_reason } = await client.messages.create({ ...weather, tool_choice });
    expect([content.map(({ type }) => type), stop_reason]).toEqual([['tool_use'], 'tool_use']);
  }
  const none = await client.messages.create({ ...weather, tool_choice: { type: 'none' } });
  expect(none.content.map(({ type }) => type)).toEqual(['text']);
});

test('thoughts are a block of their own, shown or not, and may be sent back', async () => {
  const whole = await both(thinking);
  const [thought] = whole.content;
  if (thought?.type !== 'thinking') throw new Error('no thoughts');
  expect(thought.thinking).not.toBe('');
  const omitted = await both({ ...thinking, thinking: { type: 'adaptive', display: 'omitted' } });
  expect(omitted.content[0]).toMatchObject({ type: 'thinking', thinking: '' });
  expect(textOf(omitted)).toBe(textOf(whole));
  const prompts = [whole, omitted].map(({ content }) =>
    client.messages.countTokens({
      model: 'starter',
      messages: [...thinking.messages, { role: 'assistant', content }, user('Spell it.')],
    }),
  );
  const [shown, hidden] = await Promise.all(prompts);
  expect(shown).toEqual(hidden);
  const off = await both({ ...thinking, thinking: { type: 'disabled' } });
  expect(off.content.map(({ type }) => type)).toEqual(['text']);
});

test('the reply continues a last assistant message', async () => {
  const whole = await client.messages.create(hello);
  const begun = textOf(whole).slice(0, 5);
  const rest = await both({ ...hello, messages: [...hello.messages, { role: 'assistant', content: begun }] });
  expect(begun + textOf(rest)).toBe(textOf(whole));
});

test('a schema holds the text', async () => {
  const schema = {
    type: 'object',
    properties: { name: { type: 'string', maxLength: 8 }, age: { type: 'integer', minimum: 0, maximum: 99 } },
    required: ['name', 'age'],
    additionalProperties: false,
  };
  const format = { type: 'json_schema' as const, schema };
  const reply = await client.messages.create({ ...hello, max_tokens: 60, output_config: { format } });
  expect(JSON.parse(textOf(reply))).toEqual({ name: expect.any(String) as string, age: expect.any(Number) as number });
  const bad = { ...format, schema: { type: 'object', unevaluatedProperties: false } };
  const failure = client.messages.create({ ...hello, output_config: { format: bad } });
  await expect(failure).rejects.toThrow(/output_config\.format\.schema/);
});

test('errors are those that the client knows, before a stream begins too', async () => {
  const refused = (fields: object) => client.messages.create({ ...hello, ...fields } as Body);
  await expect(refused({ stream: true, top_p: 0 })).rejects.toBeInstanceOf(Anthropic.BadRequestError);
  await expect(refused({ model: 'none' })).rejects.toBeInstanceOf(Anthropic.NotFoundError);
  await expect(refused({ tools: [{ type: 'web_search_20250305', name: 'web_search' }] })).rejects.toThrow(
    /tools\.0\.type/,
  );
  await expect(refused({ messages: [user('word '.repeat(2000))] })).rejects.toMatchObject({
    status: 400,
    type: 'invalid_request_error',
    message: expect.stringMatching(/prompt is too long: .* 1024 tokens/) as string,
  });
  const stranger = new Anthropic({ apiKey: 'nobody', baseURL: server.url, maxRetries: 0 });
  await expect(stranger.messages.create(hello)).rejects.toBeInstanceOf(Anthropic.AuthenticationError);
  const bearer = new Anthropic({ apiKey: null, authToken: API_KEY, baseURL: server.url, maxRetries: 0 });
  expect(textOf(await bearer.messages.create(hello))).not.toBe('');
});

test('models are listed and described', async () => {
  const page = await client.models.list();
  const [starter] = page.data;
  expect(starter).toMatchObject({ type: 'model', id: 'starter', display_name: 'starter', max_input_tokens: 1024 });
  expect(Date.parse(starter?.created_at ?? '')).toBeGreaterThan(0);
  expect(page.hasNextPage()).toBe(false);
  expect(await client.models.retrieve('starter')).toEqual(starter);
  await expect(client.models.retrieve('none')).rejects.toBeInstanceOf(Anthropic.NotFoundError);
});

/** One that goes on until somebody ends it. */
const endless = { ...hello, max_tokens: 900, stream: true as const, ...({ ignore_eos: true } as object) };

test('a client that leaves frees its sequence', async () => {
  let seen = 0;
  for await (const _ of await client.messages.create(endless)) if (++seen === 8) break;
  await waitFor(async () => {
    const { running, waiting, kvUsage } = await server.load();
    return running === 0 && waiting === 0 && kvUsage === 0;
  }, 10_000);
});

test('after a kill of the engine the stream ends with an error, and the next request is served', async () => {
  const types: string[] = [];
  const read = async () => {
    for await (const { type } of await client.messages.create(endless)) {
      types.push(type);
      if (types.length === 8) process.kill(server.enginePid(), 'SIGKILL');
    }
  };
  await expect(read()).rejects.toMatchObject({ type: 'api_error' });
  expect(types[0]).toBe('message_start');
  await waitFor(async () => (await server.call('/ready')).ok, 60_000);
  expect(textOf(await client.messages.create(hello))).not.toBe('');
});
