/** The `openai` client against the real server and the starter model. */
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { API_KEY, ApiServer, waitFor } from './server.ts';

let server: ApiServer;
let client: OpenAI;
beforeAll(async () => {
  server = await ApiServer.start();
  client = new OpenAI({ apiKey: API_KEY, baseURL: `${server.url}/v1`, maxRetries: 0 });
}, 90_000);
afterAll(() => server.stop());

const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'Hello! What can you do?' }];
const greedy = { model: 'starter', messages, temperature: 0, max_completion_tokens: 24 } as const;

async function collect(stream: AsyncIterable<OpenAI.ChatCompletionChunk>) {
  const chunks: OpenAI.ChatCompletionChunk[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

test('chat', async () => {
  const answer = await client.chat.completions.create(greedy);
  expect(answer).toMatchObject({ object: 'chat.completion', model: 'starter', service_tier: 'default' });
  expect(answer.id).toMatch(/^chatcmpl-[0-9a-f]{32}$/);
  expect(answer.system_fingerprint).toMatch(/^fp_/);
  expect(answer.choices).toHaveLength(1);
  expect(answer.choices[0]?.message.role).toBe('assistant');
  expect(answer.choices[0]?.message.content?.length).toBeGreaterThan(0);
  expect(answer.usage?.total_tokens).toBe((answer.usage?.prompt_tokens ?? 0) + (answer.usage?.completion_tokens ?? 0));
  expect(Math.abs(Date.now() / 1000 - answer.created)).toBeLessThan(600);
});

test('the concatenated stream is the answer', async () => {
  const whole = await client.chat.completions.create(greedy);
  const chunks = await collect(
    await client.chat.completions.create({ ...greedy, stream: true, stream_options: { include_usage: true } }),
  );
  expect(chunks[0]?.choices[0]?.delta).toEqual({ role: 'assistant', content: '' });
  expect(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('')).toBe(whole.choices[0]?.message.content);
  const finishes = chunks.map((chunk) => chunk.choices[0]?.finish_reason).filter(Boolean);
  expect(finishes).toEqual([whole.choices[0]?.finish_reason]);
  expect(chunks.at(-1)?.choices).toEqual([]);
  expect(chunks.at(-1)?.usage).toEqual(whole.usage);
  expect(new Set(chunks.map((chunk) => `${chunk.id} ${chunk.created} ${chunk.model}`)).size).toBe(1);
});

test('n = 3 with a seed: three choices, not all alike, and the same again', async () => {
  const ask = () =>
    client.chat.completions.create({ ...greedy, temperature: 1.5, n: 3, seed: 11, max_completion_tokens: 16 });
  const [first, second] = [await ask(), await ask()];
  const texts = first.choices.map((choice) => choice.message.content);
  expect(first.choices.map((choice) => choice.index)).toEqual([0, 1, 2]);
  expect(new Set(texts).size).toBeGreaterThan(1);
  expect(second.choices.map((choice) => choice.message.content)).toEqual(texts);
  const chunks = await collect(
    await client.chat.completions.create({
      ...greedy,
      temperature: 1.5,
      n: 3,
      seed: 11,
      max_completion_tokens: 16,
      stream: true,
    }),
  );
  const streamed = [0, 1, 2].map((index) =>
    chunks
      .flatMap((chunk) =>
        chunk.choices.filter((choice) => choice.index === index).map((choice) => choice.delta.content ?? ''),
      )
      .join(''),
  );
  expect(streamed).toEqual(texts);
  expect(chunks.filter((chunk) => chunk.choices[0]?.finish_reason)).toHaveLength(3);
  expect(chunks.filter((chunk) => chunk.choices[0]?.delta.role)).toHaveLength(3);
});

test('n = 1 with the seed is choice 0 of n = 3', async () => {
  const sampled = { ...greedy, temperature: 1.5, seed: 5, max_completion_tokens: 12 };
  const one = await client.chat.completions.create(sampled);
  const three = await client.chat.completions.create({ ...sampled, n: 3 });
  expect(three.choices[0]?.message.content).toBe(one.choices[0]?.message.content);
});

test('logprobs', async () => {
  const answer = await client.chat.completions.create({ ...greedy, logprobs: true, top_logprobs: 5 });
  const content = answer.choices[0]?.logprobs?.content ?? [];
  expect(content).toHaveLength(answer.usage?.completion_tokens ?? -1);
  for (const entry of content) {
    expect(entry.top_logprobs).toHaveLength(5);
    const values = entry.top_logprobs.map((top) => top.logprob);
    expect(values).toEqual([...values].sort((a, b) => b - a));
    expect(Math.min(entry.logprob, ...values)).toBeGreaterThanOrEqual(-9999);
    // Greedy: the sampled token is the likeliest.
    expect(entry.logprob).toBe(values[0]);
    expect(entry.logprob).toBeLessThanOrEqual(0);
  }
  const plain = await client.chat.completions.create({ ...greedy, logprobs: true });
  expect(plain.choices[0]?.logprobs?.content?.every((entry) => entry.top_logprobs.length === 0)).toBe(true);
  expect(plain.choices[0]?.logprobs?.content?.map((entry) => entry.logprob)).toEqual(
    content.map((entry) => entry.logprob),
  );
  expect((await client.chat.completions.create(greedy)).choices[0]?.logprobs).toBeNull();
});

test('streamed logprobs are those of the whole answer', async () => {
  const whole = await client.chat.completions.create({ ...greedy, logprobs: true, top_logprobs: 2 });
  const chunks = await collect(
    await client.chat.completions.create({ ...greedy, logprobs: true, top_logprobs: 2, stream: true }),
  );
  const streamed = chunks.flatMap((chunk) => chunk.choices[0]?.logprobs?.content ?? []);
  expect(streamed).toEqual(whole.choices[0]?.logprobs?.content);
});

test('abort in the middle of a stream frees the sequence', async () => {
  const stream = await client.chat.completions.create({
    ...greedy,
    max_completion_tokens: 900,
    stream: true,
    ...({ ignore_eos: true } as object),
  });
  let seen = 0;
  for await (const _ of stream) if (++seen === 5) break;
  expect(seen).toBe(5);
  await waitFor(async () => {
    const { running, waiting, kvUsage } = await server.load();
    return running === 0 && waiting === 0 && kvUsage === 0;
  }, 10_000);
  expect((await client.chat.completions.create(greedy)).choices).toHaveLength(1);
});

describe('error classes', () => {
  test('authentication', async () => {
    const stranger = new OpenAI({ apiKey: 'tk-wrong', baseURL: `${server.url}/v1`, maxRetries: 0 });
    await expect(stranger.chat.completions.create(greedy)).rejects.toBeInstanceOf(OpenAI.AuthenticationError);
    await expect(stranger.models.list()).rejects.toBeInstanceOf(OpenAI.AuthenticationError);
  });
  test('bad request', async () => {
    const failure = client.chat.completions.create({ ...greedy, temperature: -1 });
    await expect(failure).rejects.toBeInstanceOf(OpenAI.BadRequestError);
    await expect(failure).rejects.toMatchObject({ status: 400, param: 'temperature', type: 'BadRequestError' });
  });
  test('unknown model', async () => {
    const failure = client.chat.completions.create({ ...greedy, model: 'gpt-none' });
    await expect(failure).rejects.toBeInstanceOf(OpenAI.NotFoundError);
    await expect(failure).rejects.toMatchObject({ param: 'model', type: 'NotFoundError' });
  });
  test('a refused stream rejects before its first chunk', async () => {
    const failure = client.chat.completions.create({ ...greedy, stream: true, top_p: 0 });
    await expect(failure).rejects.toBeInstanceOf(OpenAI.BadRequestError);
  });
  test('too long', async () => {
    const long = client.chat.completions.create({
      ...greedy,
      messages: [{ role: 'user', content: 'word '.repeat(2000) }],
    });
    await expect(long).rejects.toMatchObject({ status: 400, param: 'input_tokens' });
    await expect(long).rejects.toThrow(/maximum context length is 1024 tokens/);
    const output = client.chat.completions.create({ ...greedy, max_completion_tokens: 5000 });
    await expect(output).rejects.toMatchObject({ status: 400, param: 'max_completion_tokens' });
  });
});

test('models', async () => {
  const list = await client.models.list();
  expect(list.data).toHaveLength(1);
  expect(list.data[0]).toMatchObject({
    id: 'starter',
    object: 'model',
    root: 'starter',
    parent: null,
    max_model_len: 1024,
  });
  expect(await client.models.retrieve('starter')).toEqual(list.data[0]);
  await expect(client.models.retrieve('org/other')).rejects.toBeInstanceOf(OpenAI.NotFoundError);
});

describe('text completions', () => {
  const prompt = 'Once upon a time';
  test('texts and ids give the same', async () => {
    const ids = (await (await server.post('/tokenize', { prompt })).json()) as { tokens: number[]; count: number };
    expect(ids.count).toBe(ids.tokens.length);
    const ask = (input: string | string[] | number[] | number[][]) =>
      client.completions.create({ model: 'starter', prompt: input, temperature: 0, max_tokens: 8 });
    const text = await ask(prompt);
    expect(text.object).toBe('text_completion');
    expect(text.id).toMatch(/^cmpl-/);
    const expected = text.choices[0]?.text;
    expect((await ask(ids.tokens)).choices[0]?.text).toBe(expected);
    const several = await ask([ids.tokens, ids.tokens]);
    expect(several.choices.map((choice) => [choice.index, choice.text])).toEqual([
      [0, expected],
      [1, expected],
    ]);
    expect(several.usage?.prompt_tokens).toBe(2 * (text.usage?.prompt_tokens ?? 0));
    expect((await ask([prompt, 'Another'])).choices[0]?.text).toBe(expected);
  });
  test('n, logprobs, echo', async () => {
    const answer = await client.completions.create({
      model: '',
      prompt,
      n: 2,
      temperature: 1,
      seed: 3,
      max_tokens: 6,
      logprobs: 2,
    });
    expect(answer.choices).toHaveLength(2);
    const logprobs = answer.choices[0]?.logprobs;
    expect(logprobs?.tokens).toHaveLength(logprobs?.token_logprobs?.length ?? -1);
    for (const top of logprobs?.top_logprobs ?? []) expect(Object.keys(top).length).toBeGreaterThanOrEqual(2);
    expect(logprobs?.text_offset?.[0]).toBe(0);
    const echoed = await client.completions.create({ model: '', prompt, echo: true, temperature: 0, max_tokens: 4 });
    expect(echoed.choices[0]?.text.startsWith(prompt)).toBe(true);
  });
  test('stream', async () => {
    const body = { model: '', prompt: [prompt, 'The'], temperature: 0, max_tokens: 8 };
    const whole = await client.completions.create(body);
    const texts = ['', ''];
    let finishes = 0;
    for await (const chunk of await client.completions.create({ ...body, stream: true })) {
      const choice = chunk.choices[0];
      if (!choice) continue;
      texts[choice.index] += choice.text;
      if (choice.finish_reason) finishes++;
    }
    expect(texts).toEqual(whole.choices.map((choice) => choice.text));
    expect(finishes).toBe(2);
  });
  test('what is not there is refused by name', async () => {
    const refused = (fields: object) => server.post('/v1/completions', { prompt, ...fields });
    for (const fields of [{ suffix: 'x' }, { best_of: 3 }, { prompt: [] }, { prompt: ['a', 1] }, { prompt: [-1] }]) {
      const response = await refused(fields);
      expect(response.status, JSON.stringify(fields)).toBe(400);
      const { error } = (await response.json()) as { error: { param: string } };
      expect(Object.keys({ prompt, ...fields })).toContain(error.param);
    }
  });
});

test('tokenize and detokenize', async () => {
  const tokens = (await (await server.post('/tokenize', { messages, return_token_strs: true })).json()) as {
    count: number;
    tokens: number[];
    token_strs: string[];
    max_model_len: number;
  };
  expect(tokens.max_model_len).toBe(1024);
  expect(tokens.token_strs).toHaveLength(tokens.count);
  const answer = await client.chat.completions.create(greedy);
  expect(tokens.count).toBe(answer.usage?.prompt_tokens);
  const text = 'Grüße, 世界 😀';
  const encoded = (await (await server.post('/tokenize', { prompt: text })).json()) as { tokens: number[] };
  const decoded = (await (await server.post('/detokenize', { tokens: encoded.tokens })).json()) as { prompt: string };
  expect(decoded.prompt).toBe(text);
  expect((await server.post('/detokenize', { tokens: [1_000_000] })).status).toBe(400);
});
