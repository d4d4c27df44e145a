/** The Responses API by the `openai` client against the real server and the starter model. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { API_KEY, ApiServer, waitFor } from './server.ts';

const dataDir = mkdtempSync(join(tmpdir(), 'tandem-responses-'));
let server: ApiServer;
let client: OpenAI;

async function start(flags: string[] = []): Promise<void> {
  server = await ApiServer.start({ dataDir, flags });
  client = new OpenAI({ apiKey: API_KEY, baseURL: `${server.url}/v1`, maxRetries: 0 });
}

beforeAll(() => start(), 90_000);
afterAll(async () => {
  await server.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

const greedy = { model: 'starter', temperature: 0 };
const hello = { ...greedy, input: 'Hello! What can you do?', max_output_tokens: 32 };
const parameters = {
  type: 'object',
  properties: { size: { type: 'string', enum: ['small', 'medium', 'large'] }, repeat: { type: 'boolean' } },
  required: ['size', 'repeat'],
  additionalProperties: false,
};
const tools: OpenAI.Responses.FunctionTool[] = [
  { type: 'function', name: 'lock_weather', description: 'Lock the weather.', parameters, strict: true },
];
const weather = { ...greedy, tools, input: 'Lock the weather: repeat yes, size large.', max_output_tokens: 120 };
const thinking = {
  ...greedy,
  input: 'Reverse the word tro.',
  reasoning: { effort: 'low' },
  max_output_tokens: 120,
} as const;

const conversation = [
  { role: 'developer', content: 'Be short.' },
  { role: 'user', content: [{ type: 'input_text', text: 'é' }] },
  { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'Lock it.' }] },
  { type: 'function_call', call_id: 'c', name: 'lock_weather', arguments: '{"size": "small", "repeat": true}' },
  { type: 'function_call_output', call_id: 'c', output: 'locked' },
  { role: 'assistant', content: 'Done.' },
  { role: 'user', content: 'Thanks.' },
];

/** By what is random or of the clock. */
function comparable({ output, usage, status, output_text }: OpenAI.Responses.Response): object {
  const items = output.map((item) => ({ ...item, id: '', ...('call_id' in item ? { call_id: '' } : {}) }));
  return { items, status, output_text, tokens: usage?.output_tokens };
}

/** The last response of a stream, and what its deltas add up to. */
async function streamed(body: Parameters<OpenAI['responses']['stream']>[0]) {
  const stream = client.responses.stream(body);
  let text = '';
  let thoughts = '';
  let args = '';
  for await (const event of stream) {
    if (event.type === 'response.output_text.delta') text += event.delta;
    if (event.type === 'response.reasoning_text.delta') thoughts += event.delta;
    if (event.type === 'response.function_call_arguments.delta') args += event.delta;
  }
  return { text, thoughts, args, response: await stream.finalResponse() };
}

test('a text, whole and streamed, is the answer of the chat', async () => {
  const whole = await client.responses.create(hello);
  expect(whole).toMatchObject({ object: 'response', model: 'starter', status: 'completed', error: null });
  expect(whole.id).toMatch(/^resp_[0-9a-f]{32}$/);
  const chat = await client.chat.completions.create({
    ...greedy,
    messages: [{ role: 'user', content: hello.input }],
    max_completion_tokens: 32,
  });
  expect(whole.output_text).toBe(chat.choices[0]?.message.content);
  expect(whole.usage).toMatchObject({
    input_tokens: chat.usage?.prompt_tokens,
    output_tokens: chat.usage?.completion_tokens,
    total_tokens: chat.usage?.total_tokens,
  });
  const { text, response } = await streamed(hello);
  expect(text).toBe(whole.output_text);
  expect(comparable(response)).toMatchObject(comparable(whole));
});

test('max_output_tokens ends it as incomplete', async () => {
  const short = { ...hello, max_output_tokens: 4 };
  const whole = await client.responses.create(short);
  expect(whole).toMatchObject({ status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } });
  expect(whole.output).toMatchObject([{ type: 'message', status: 'incomplete' }]);
  expect(comparable((await streamed(short)).response)).toMatchObject(comparable(whole));
});

test('a call, its output, and the reply: by all items, by the previous response, by references', async () => {
  const asked = await client.responses.create(weather);
  const [call] = asked.output;
  if (call?.type !== 'function_call') throw new Error('no call');
  expect(call).toMatchObject({ name: 'lock_weather', status: 'completed' });
  expect(JSON.parse(call.arguments)).toEqual({ size: 'large', repeat: true });
  const output = { type: 'function_call_output', call_id: call.call_id, output: '{"temperature": 23}' } as const;
  const rest = { ...greedy, tools, max_output_tokens: 60 };
  const items = [{ role: 'user', content: weather.input } as const, ...asked.output, output];
  const replies = [
    await client.responses.create({ ...rest, input: items as OpenAI.Responses.ResponseInput, store: false }),
    await client.responses.create({ ...rest, input: [output], previous_response_id: asked.id }),
    await client.responses.create({
      ...rest,
      input: [{ role: 'user', content: weather.input }, { type: 'item_reference', id: call.id ?? '' }, output],
    }),
  ];
  expect(replies[0]?.output_text).toContain('23');
  expect(new Set(replies.map((reply) => reply.output_text)).size).toBe(1);
  expect(new Set(replies.map((reply) => reply.usage?.input_tokens)).size).toBe(1);
  const { args, response } = await streamed(weather);
  expect(JSON.parse(args)).toEqual({ size: 'large', repeat: true });
  expect(response.output).toMatchObject([{ type: 'function_call', arguments: args }]);
});

test('tool_choice names the call or forbids it', async () => {
  const named = await client.responses.create({ ...weather, tool_choice: { type: 'function', name: 'lock_weather' } });
  expect(named.output.map(({ type }) => type)).toEqual(['function_call']);
  const none = await client.responses.create({ ...weather, tool_choice: 'none' });
  expect(none.output.map(({ type }) => type)).toEqual(['message']);
});

test('reasoning is an item of its own, and may be sent back', async () => {
  const whole = await client.responses.create({ ...thinking, include: ['reasoning.encrypted_content'], store: false });
  const [reasoning, message] = whole.output;
  if (reasoning?.type !== 'reasoning' || message?.type !== 'message') throw new Error('no reasoning');
  expect(reasoning.content?.[0]?.text).not.toBe('');
  expect(whole.output_text).not.toMatch(/<\/?think>/);
  expect(whole.usage?.output_tokens_details.reasoning_tokens).toBeGreaterThan(0);
  const { thoughts, text } = await streamed(thinking);
  expect([thoughts, text]).toEqual([reasoning.content?.[0]?.text, whole.output_text]);
  const again = await client.responses.create({
    ...thinking,
    input: [{ role: 'user', content: thinking.input }, reasoning, message, { role: 'user', content: 'Spell it.' }],
  });
  expect(again.status).toBe('completed');
  const off = await client.responses.create({ ...thinking, reasoning: { effort: 'none' } });
  expect(off.output.map(({ type }) => type)).toEqual(['message']);
});

test('a schema holds the text, and the client parses it', async () => {
  const schema = {
    type: 'object',
    properties: { name: { type: 'string', maxLength: 8 }, age: { type: 'integer', minimum: 0, maximum: 99 } },
    required: ['name', 'age'],
    additionalProperties: false,
  };
  const format = { type: 'json_schema', name: 'person', strict: true, schema } as const;
  const { output_parsed: person } = await client.responses.parse({ ...greedy, input: 'A person.', text: { format } });
  expect(person).toEqual({ name: expect.any(String) as string, age: expect.any(Number) as number });
  const bad = { ...format, schema: { type: 'object', unevaluatedProperties: false } };
  const failure = client.responses.create({ ...hello, text: { format: bad } });
  await expect(failure).rejects.toMatchObject({ status: 400, param: 'text.format.schema' });
});

test('log-probabilities are those of the chat', async () => {
  const scored = {
    ...hello,
    include: ['message.output_text.logprobs'] as ['message.output_text.logprobs'],
    top_logprobs: 2,
  };
  const [item] = (await client.responses.create(scored)).output;
  const chat = await client.chat.completions.create({
    ...greedy,
    messages: [{ role: 'user', content: hello.input }],
    max_completion_tokens: 32,
    logprobs: true,
    top_logprobs: 2,
  });
  const logprobs =
    item?.type === 'message' && item.content[0]?.type === 'output_text' ? item.content[0].logprobs : null;
  expect(logprobs).toEqual(chat.choices[0]?.logprobs?.content);
  expect((await streamed(scored)).response.output).toMatchObject([{ content: [{ logprobs }] }]);
});

test('log-probabilities of what a stop string ended are those of the chat', async () => {
  const whole = (await client.responses.create(hello)).output_text;
  // At the very start, and behind some text.
  for (const stop of [[whole.slice(0, 2)], [whole.slice(6, 12)]]) {
    const fields = { ...greedy, ...({ stop } as object) };
    const include = ['message.output_text.logprobs'] as ['message.output_text.logprobs'];
    const [item] = (await client.responses.create({ ...hello, ...fields, include })).output;
    const messages = [{ role: 'user' as const, content: hello.input }];
    const chat = await client.chat.completions.create({ ...fields, messages, logprobs: true, stop });
    const [part] = item?.type === 'message' ? item.content : [];
    if (part?.type !== 'output_text') throw new Error('no text');
    expect(part.text).toBe(chat.choices[0]?.message.content ?? '');
    expect(part.logprobs).toEqual(chat.choices[0]?.logprobs?.content);
    expect(part.logprobs?.length).toBeGreaterThan(0);
  }
});

test('error classes, before a stream begins too', async () => {
  const refused = client.responses.create({ ...hello, stream: true, top_p: 0 });
  await expect(refused).rejects.toBeInstanceOf(OpenAI.BadRequestError);
  const builtIn = client.responses.create({ ...hello, tools: [{ type: 'web_search' }] });
  await expect(builtIn).rejects.toMatchObject({ status: 400, param: 'tools[0].type' });
  await expect(client.responses.create({ ...hello, model: 'none' })).rejects.toBeInstanceOf(OpenAI.NotFoundError);
  const long = client.responses.create({ ...hello, input: 'word '.repeat(2000) });
  await expect(long).rejects.toThrow(/maximum context length is 1024 tokens/);
  const output = client.responses.create({ ...hello, max_output_tokens: 5000 });
  await expect(output).rejects.toMatchObject({ status: 400, param: 'max_output_tokens' });
});

test('what a response would read is counted', async () => {
  const first = await client.responses.create(weather);
  const { max_output_tokens, temperature, ...asked } = weather;
  const counted = await client.responses.inputTokens.count(asked);
  expect(counted).toEqual({ object: 'response.input_tokens', input_tokens: first.usage?.input_tokens });
  const next = { model: 'starter', tools, input: 'And again.', previous_response_id: first.id };
  const second = await client.responses.create({ ...next, max_output_tokens, temperature });
  const { input_tokens } = await client.responses.inputTokens.count(next);
  expect(input_tokens).toBe(second.usage?.input_tokens);
  expect(input_tokens).toBeGreaterThan(counted.input_tokens);
});

test.each<[string, object]>([
  ['instructions', { instructions: 'Be short.' }],
  ['thoughts', { reasoning: { effort: 'high' } }],
  ['no thoughts', { reasoning: { effort: 'none' } }],
  ['a schema', { text: { format: { type: 'json_schema', name: 's', schema: parameters } } }],
  ['a tool that must be called', { tools, tool_choice: 'required' }],
  ['tools of which some are allowed', { tools, tool_choice: { type: 'allowed_tools', mode: 'auto', tools } }],
  ['items of all kinds', { input: conversation }],
  [
    'items that leave',
    {
      input: [...Array<object>(300).fill({ role: 'user', content: hello.input }), ...conversation],
      truncation: 'auto',
    },
  ],
])('as many are counted as a response tells that it read: %s', async (_, fields) => {
  const body = { model: 'starter', input: 'Hi', ...fields } as const;
  const { input_tokens } = await client.responses.inputTokens.count(body);
  const made = await client.responses.create({ ...body, max_output_tokens: 1 });
  expect(made.usage?.input_tokens).toBe(input_tokens);
});

test('what no longer fits is refused, or its oldest items leave', async () => {
  const old = Array.from({ length: 40 }, (_, at) => [
    { role: 'user' as const, content: `${at}: ${'word '.repeat(20)}` },
    { role: 'assistant' as const, content: 'Yes.' },
  ]).flat();
  const long = {
    ...hello,
    instructions: 'Be short.',
    input: [...old, { role: 'user' as const, content: hello.input }],
  };
  await expect(client.responses.create(long)).rejects.toMatchObject({ status: 400 });
  const cut = await client.responses.create({ ...long, truncation: 'auto' });
  expect(cut).toMatchObject({ status: 'completed', truncation: 'auto' });
  expect(cut.usage?.input_tokens).toBeLessThanOrEqual(1024 - 32);
  expect(cut.usage?.input_tokens).toBeGreaterThan(900);
});

/** One that goes on until somebody ends it. */
const endless = { ...hello, max_output_tokens: 900, stream: true, ...({ ignore_eos: true } as object) } as const;

test('a client that leaves frees its sequence', async () => {
  let seen = 0;
  for await (const _ of await client.responses.create(endless)) if (++seen === 8) break;
  await waitFor(async () => {
    const { running, waiting, kvUsage } = await server.load();
    return running === 0 && waiting === 0 && kvUsage === 0;
  }, 10_000);
});

describe('after a kill', () => {
  test('of the engine, the stream ends with an error, and the next request is served', async () => {
    const types: string[] = [];
    const read = async () => {
      for await (const { type } of await client.responses.create(endless)) {
        types.push(type);
        if (types.length === 8) process.kill(server.enginePid(), 'SIGKILL');
      }
    };
    await expect(read()).rejects.toBeInstanceOf(OpenAI.APIError);
    expect(types[0]).toBe('response.created');
    await waitFor(async () => (await server.call('/ready')).ok, 60_000);
    expect((await client.responses.create(hello)).status).toBe('completed');
  });

  test('of the server, what was answered is still there, and older ones leave for newer ones', async () => {
    const first = await client.responses.create({ ...hello, metadata: { a: 'b' } });
    const { response: second } = await streamed({ ...hello, input: 'And now?', previous_response_id: first.id });
    await server.stop();
    await start(['--max-stored-responses', '3']);
    const kept = await client.responses.retrieve(first.id);
    expect({ ...kept, output_text: '' }).toEqual({ ...first, output_text: '' });
    const items = await client.responses.inputItems.list(second.id);
    expect(items.data).toMatchObject([{ type: 'message', content: [{ type: 'input_text', text: 'And now?' }] }]);
    const third = await client.responses.create({ ...hello, previous_response_id: second.id });
    expect(third.usage?.input_tokens).toBeGreaterThan(second.usage?.input_tokens ?? Infinity);
    await client.responses.create(hello);
    await expect(client.responses.retrieve(first.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    const broken = client.responses.create({ ...hello, previous_response_id: third.id });
    await expect(broken).rejects.toMatchObject({ status: 404, param: 'previous_response_id' });
    await client.responses.delete(third.id);
    await expect(client.responses.retrieve(third.id)).rejects.toBeInstanceOf(OpenAI.NotFoundError);
  });
});
