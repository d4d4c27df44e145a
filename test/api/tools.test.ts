/** Tool calls and reasoning end to end: the `openai` client and what the starter model writes by itself. */
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { API_KEY, ApiServer } from './server.ts';

let server: ApiServer;
let client: OpenAI;
beforeAll(async () => {
  server = await ApiServer.start();
  client = new OpenAI({ apiKey: API_KEY, baseURL: `${server.url}/v1`, maxRetries: 0 });
}, 90_000);
afterAll(() => server?.stop());

const tools: OpenAI.ChatCompletionTool[] = [
  {
    type: 'function',
    function: {
      name: 'lock_weather',
      description: 'Lock the weather.',
      parameters: {
        type: 'object',
        properties: { size: { type: 'string', enum: ['small', 'medium', 'large'] }, repeat: { type: 'boolean' } },
        required: ['size', 'repeat'],
      },
    },
  },
];
const messages: OpenAI.ChatCompletionMessageParam[] = [
  { role: 'user', content: 'Lock the weather: repeat yes, size large.' },
];
const asked = { model: 'starter', messages, tools, temperature: 0, max_completion_tokens: 120 };

interface Streamed {
  content: string;
  reasoning: string;
  calls: { index: number; id?: string; name?: string; arguments: string }[];
  finishes: (string | null)[];
  /** Chunks with a part of a call. */
  pieces: number;
}

async function streamed(body: object): Promise<Streamed> {
  const stream = await client.chat.completions.create({ ...asked, ...body, stream: true });
  const got: Streamed = { content: '', reasoning: '', calls: [], finishes: [], pieces: 0 };
  for await (const { choices } of stream) {
    const [choice] = choices;
    if (!choice) continue;
    const delta = choice.delta as typeof choice.delta & { reasoning?: string };
    got.content += delta.content ?? '';
    got.reasoning += delta.reasoning ?? '';
    if (delta.tool_calls) got.pieces++;
    for (const call of delta.tool_calls ?? []) {
      const known = got.calls[call.index];
      if (known) known.arguments += call.function?.arguments ?? '';
      else got.calls[call.index] = { index: call.index, ...pick(call) };
    }
    if (choice.finish_reason !== null) got.finishes.push(choice.finish_reason);
  }
  return got;
}

function pick(call: { id?: string; function?: { name?: string; arguments?: string } }) {
  return {
    ...(call.id === undefined ? {} : { id: call.id }),
    ...(call.function?.name === undefined ? {} : { name: call.function.name }),
    arguments: call.function?.arguments ?? '',
  };
}

test('a call that the model chose', async () => {
  for (const choice of [undefined, 'auto', null]) {
    // The client's types know no null.
    const chosen = (choice === undefined ? {} : { tool_choice: choice }) as { tool_choice: 'auto' };
    const [reply] = (await client.chat.completions.create({ ...asked, ...chosen })).choices;
    expect(reply?.finish_reason).toBe('tool_calls');
    expect(reply?.message.content).toBeNull();
    const [call] = reply?.message.tool_calls ?? [];
    if (call?.type !== 'function') throw new Error('no call');
    expect(call.id).toMatch(/^chatcmpl-tool-[0-9a-f]{32}$/);
    expect(call.function.name).toBe('lock_weather');
    expect(JSON.parse(call.function.arguments)).toEqual({ size: 'large', repeat: true });
  }
});

test('the same call streamed', async () => {
  const got = await streamed({});
  expect(got).toMatchObject({ content: '', finishes: ['tool_calls'], calls: [{ index: 0, name: 'lock_weather' }] });
  expect(got.calls).toHaveLength(1);
  expect(JSON.parse(got.calls[0]?.arguments ?? '')).toEqual({ size: 'large', repeat: true });
  expect(got.pieces).toBeGreaterThan(4);
});

test('a call that its token limit cuts: content, or in a stream what came of it', async () => {
  const whole = await client.chat.completions.create(asked);
  const cut = { max_completion_tokens: (whole.usage?.completion_tokens ?? 0) - 6 };
  const [reply] = (await client.chat.completions.create({ ...asked, ...cut })).choices;
  expect(reply).toMatchObject({ finish_reason: 'length' });
  expect(reply?.message.tool_calls).toBeUndefined();
  expect(reply?.message.content).toContain('<tool_call>');
  const got = await streamed(cut);
  expect(got).toMatchObject({ content: '', finishes: ['length'], calls: [{ index: 0, name: 'lock_weather' }] });
  expect(got.calls[0]?.arguments).toMatch(/^\{"size": "large"/);
  expect(reply?.message.content).toContain(got.calls[0]?.arguments);
});

test('a strict call, a required one and a named one keep to the schema', async () => {
  const strict = tools.map((tool) => ({
    ...tool,
    function: { ...(tool as { function: object }).function, strict: true },
  }));
  const [chosen] = (await client.chat.completions.create({ ...asked, tools: strict as typeof tools })).choices;
  const named = { type: 'function', function: { name: 'lock_weather' } } as const;
  const [forced] = (await client.chat.completions.create({ ...asked, tool_choice: 'required' })).choices;
  const [one] = (await client.chat.completions.create({ ...asked, tool_choice: named })).choices;
  expect([chosen, forced, one].map((choice) => choice?.finish_reason)).toEqual(['tool_calls', 'tool_calls', 'stop']);
  for (const choice of [chosen, forced, one]) {
    const [call] = choice?.message.tool_calls ?? [];
    if (call?.type !== 'function') throw new Error('no call');
    expect(call.function.name).toBe('lock_weather');
    const { size, repeat } = JSON.parse(call.function.arguments) as { size: unknown; repeat: unknown };
    expect(['small', 'medium', 'large']).toContain(size);
    expect(typeof repeat).toBe('boolean');
  }
  const got = await streamed({ tools: strict });
  expect(got).toMatchObject({ content: '', finishes: ['tool_calls'], calls: [{ index: 0, name: 'lock_weather' }] });
});

test('none never gives calls', async () => {
  const [choice] = (await client.chat.completions.create({ ...asked, tool_choice: 'none' })).choices;
  expect(choice?.message.tool_calls).toBeUndefined();
  expect(choice?.message.content).toContain('lock_weather');
  expect(choice?.finish_reason).toBe('stop');
  expect((await streamed({ tool_choice: 'none' })).calls).toEqual([]);
});

test.each(['', '{}', '{"size": "large", "repeat": true}'])('a call in the history with arguments %j', async (args) => {
  const call = { id: 'c1', type: 'function' as const, function: { name: 'lock_weather', arguments: args } };
  const history: OpenAI.ChatCompletionMessageParam[] = [
    ...messages,
    { role: 'assistant', content: null, tool_calls: [call] },
    { role: 'tool', tool_call_id: 'c1', content: '{"temperature": 23}' },
  ];
  const [choice] = (await client.chat.completions.create({ ...asked, messages: history })).choices;
  expect(choice?.finish_reason).toBe('stop');
  expect(choice?.message.content).not.toBe('');
});

test('a history in the old form is the same prompt', async () => {
  const call = { name: 'lock_weather', arguments: '{"size": "large", "repeat": true}' };
  const answer = '{"temperature": 23}';
  const count = async (history: object[]) => {
    const response = await server.post('/tokenize', { messages: [...messages, ...history], tools });
    return ((await response.json()) as { tokens: number[] }).tokens;
  };
  const old = [
    { role: 'assistant', content: null, function_call: call },
    { role: 'function', name: 'lock_weather', content: answer },
  ];
  const now = [
    { role: 'assistant', content: null, tool_calls: [{ id: 'c1', type: 'function', function: call }] },
    { role: 'tool', tool_call_id: 'c1', name: 'lock_weather', content: answer },
  ];
  expect(await count(old)).toEqual(await count(now));
});

describe('reasoning', () => {
  const thinking = {
    messages: [{ role: 'user', content: 'Reverse the word tro.' }],
    temperature: 0,
    max_tokens: 120,
    chat_template_kwargs: { enable_thinking: true },
  };
  interface Answer {
    choices: { message: { content: string | null; reasoning: string | null }; token_ids: number[] }[];
    usage: { completion_tokens: number; completion_tokens_details: { reasoning_tokens: number } };
  }
  const ask = async (fields: object): Promise<Answer> => {
    const response = await server.post('/v1/chat/completions', { ...thinking, return_token_ids: true, ...fields });
    expect(response.status).toBe(200);
    return (await response.json()) as Answer;
  };

  test('stands apart from the content, whole and streamed', async () => {
    const { choices, usage } = await ask({});
    const message = choices[0]?.message;
    expect(message?.reasoning).not.toBeNull();
    expect(`${message?.reasoning}${message?.content}`).not.toMatch(/<\/?think>/);
    expect(usage.completion_tokens_details.reasoning_tokens).toBeGreaterThan(0);
    expect(usage.completion_tokens_details.reasoning_tokens).toBeLessThan(usage.completion_tokens);
    const got = await streamed({ tools: undefined, ...thinking });
    expect([got.reasoning, got.content]).toEqual([message?.reasoning, message?.content]);
  });

  test('include_reasoning false leaves it out, with its ids, and still counts it', async () => {
    const shown = await ask({});
    const hidden = await ask({ include_reasoning: false });
    expect(hidden.choices[0]?.message).toMatchObject({
      reasoning: null,
      content: shown.choices[0]?.message.content,
    });
    expect(hidden.usage).toMatchObject({
      completion_tokens: shown.usage.completion_tokens,
      completion_tokens_details: shown.usage.completion_tokens_details,
    });
    const ids = hidden.choices[0]?.token_ids ?? [];
    // The start tag, a token of its own, goes with the thoughts.
    expect(ids.length).toBe(shown.usage.completion_tokens - shown.usage.completion_tokens_details.reasoning_tokens - 1);
    expect(ids).toEqual(shown.choices[0]?.token_ids.slice(-ids.length));
    const got = await streamed({ tools: undefined, ...thinking, include_reasoning: false });
    expect([got.reasoning, got.content]).toEqual(['', hidden.choices[0]?.message.content]);
  });

  test('an effort of none turns it off', async () => {
    const { choices } = await ask({ chat_template_kwargs: {}, reasoning_effort: 'none' });
    expect(choices[0]?.message.reasoning).toBeNull();
    const low = await ask({ chat_template_kwargs: {}, reasoning_effort: 'low' });
    expect(low.choices[0]?.message.reasoning).not.toBeNull();
  });
});
