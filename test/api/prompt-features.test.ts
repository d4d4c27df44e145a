/** What depends on the prompt's computation, on the starter model: scores, echo, prefix cache, repetition. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ApiServer, readEvents } from './server.ts';

const CHAT = '/v1/chat/completions';
const messages = [{ role: 'user', content: 'Hello! What can you do?' }];

let server: ApiServer;
beforeAll(async () => {
  server = await ApiServer.start({ flags: ['--scheduling-policy', 'priority', '--trust-request-chat-template'] });
}, 90_000);
afterAll(() => server?.stop());

async function post<T>(path: string, body: object): Promise<T> {
  const response = await server.post(path, body);
  expect(response.status, await response.clone().text()).toBe(200);
  return (await response.json()) as T;
}

interface Score {
  logprob: number;
  rank: number;
  decoded_token: string;
}
interface ChatAnswer {
  choices: { message: { content: string }; finish_reason: string; stop_reason: unknown; token_ids: number[] }[];
  usage: { prompt_tokens: number; completion_tokens: number; prompt_tokens_details: { cached_tokens: number } };
  prompt_logprobs: (Record<string, Score> | null)[] | null;
  prompt_token_ids: number[];
  service_tier: string;
}
interface TextAnswer {
  choices: {
    text: string;
    finish_reason: string;
    prompt_logprobs: (Record<string, Score> | null)[] | null;
    logprobs: {
      tokens: string[];
      token_logprobs: (number | null)[];
      top_logprobs: (Record<string, number> | null)[];
      text_offset: number[];
    };
  }[];
  usage: { prompt_tokens: number; completion_tokens: number };
}
const chat = (fields: object) => post<ChatAnswer>(CHAT, { messages, max_tokens: 4, temperature: 0, ...fields });
const complete = (fields: object) => post<TextAnswer>('/v1/completions', { temperature: 0, max_tokens: 4, ...fields });

describe('prompt_logprobs', () => {
  test.each([0, 1, 3])('%d alternatives for every token but the first', async (count) => {
    const answer = await chat({ prompt_logprobs: count, return_token_ids: true });
    const scores = answer.prompt_logprobs ?? [];
    expect(scores).toHaveLength(answer.usage.prompt_tokens);
    expect(scores[0]).toBeNull();
    for (const [at, score] of scores.entries()) {
      if (!score) continue;
      const own = score[String(answer.prompt_token_ids[at])];
      expect(own?.logprob).toBeLessThanOrEqual(0);
      expect([Math.max(count, 1), count + 1]).toContain(Object.keys(score).length);
      // The token is among its alternatives exactly when its rank says so.
      expect(Object.keys(score).length === count).toBe((own?.rank ?? 0) <= count);
      const alternatives = Object.values(score).sort((a, b) => a.rank - b.rank);
      for (const [place, { rank, logprob }] of alternatives.entries()) {
        if (place < count) expect(rank).toBe(place + 1);
        expect(logprob).toBeLessThanOrEqual(alternatives[place - 1]?.logprob ?? 0);
      }
    }
    expect((await chat({})).prompt_logprobs).toBeNull();
  });

  test('with several choices, and the same as what decoding says', async () => {
    const first = await chat({ return_token_ids: true, n: 3, temperature: 1, seed: 4, prompt_logprobs: 0 });
    expect(first.choices).toHaveLength(3);
    const generated = await post<{ choices: { token_ids: number[]; logprobs: { content: { logprob: number }[] } }[] }>(
      CHAT,
      { messages, temperature: 0, max_tokens: 6, logprobs: true, return_token_ids: true, ignore_eos: true },
    );
    const ids = generated.choices[0]?.token_ids ?? [];
    const prompt = [...first.prompt_token_ids, ...ids];
    const scored = (await complete({ prompt, max_tokens: 1, prompt_logprobs: 0 })).choices[0]?.prompt_logprobs ?? [];
    const decoded = generated.choices[0]?.logprobs.content.map(({ logprob }) => logprob);
    expect(ids.map((id, at) => scored[first.prompt_token_ids.length + at]?.[String(id)]?.logprob)).toEqual(decoded);
  });

  test('0 may be streamed, more may not', async () => {
    const stream = async (count: number) => server.post(CHAT, { messages, stream: true, prompt_logprobs: count });
    expect((await stream(1)).status).toBe(400);
    const events = readEvents(await (await stream(0)).text());
    expect((events[0] as ChatAnswer).prompt_logprobs?.[0]).toBeNull();
    expect(events.at(-1)).toBe('[DONE]');
  });
});

describe('completions with echo and logprobs', () => {
  const prompt = 'Hello there, how are you';
  test.each([0, 1])('max_tokens %d', async (maxTokens) => {
    const answer = await complete({ prompt, echo: true, logprobs: 2, max_tokens: maxTokens });
    const [choice] = answer.choices;
    const {
      tokens,
      token_logprobs: values,
      top_logprobs: top,
      text_offset: offsets,
    } = choice?.logprobs ?? { tokens: [] };
    expect(tokens).toHaveLength(answer.usage.prompt_tokens + maxTokens);
    expect(answer.usage.completion_tokens).toBe(maxTokens);
    expect(tokens.join('')).toBe(choice?.text);
    expect(choice?.text.startsWith(prompt)).toBe(true);
    expect([values?.[0], top?.[0], offsets?.[0]]).toEqual([null, null, 0]);
    for (const [at, token] of tokens.entries()) {
      if (at === 0) continue;
      expect(choice?.text.slice(offsets?.[at]).startsWith(token)).toBe(true);
      expect(top?.[at]?.[token]).toBe(values?.[at]);
    }
  });
  test('several prompts, streamed as whole', async () => {
    const fields = { prompt: [prompt, 'The sky'], echo: true, logprobs: 1, max_tokens: 3, temperature: 0 };
    const whole = await complete(fields);
    const response = await server.post('/v1/completions', { ...fields, stream: true });
    const texts = ['', ''];
    const values: (number | null)[][] = [[], []];
    for (const event of readEvents(await response.text())) {
      if (event === '[DONE]') continue;
      for (const choice of (event as { choices: (TextAnswer['choices'][0] & { index: number })[] }).choices) {
        texts[choice.index] += choice.text;
        values[choice.index]?.push(...(choice.logprobs?.token_logprobs ?? []));
      }
    }
    expect(texts).toEqual(whole.choices.map((choice) => choice.text));
    expect(values).toEqual(whole.choices.map((choice) => choice.logprobs.token_logprobs));
  });
  test('0 tokens need echo', async () => {
    expect((await server.post('/v1/completions', { prompt, max_tokens: 0 })).status).toBe(400);
  });
});

describe('echo in chat', () => {
  const prefix = [...messages, { role: 'assistant', content: 'I am a' }];
  test('a continued message comes back with its beginning', async () => {
    const fields = { messages: prefix, continue_final_message: true, add_generation_prompt: false };
    const plain = await chat(fields);
    const echoed = await chat({ ...fields, echo: true });
    expect(echoed.choices[0]?.message.content).toBe(`I am a${plain.choices[0]?.message.content}`);
    expect(echoed.prompt_logprobs).toHaveLength(echoed.usage.prompt_tokens);
    const response = await server.post(CHAT, { ...fields, max_tokens: 4, temperature: 0, echo: true, stream: true });
    const deltas = readEvents(await response.text()).flatMap((event) =>
      event === '[DONE]'
        ? []
        : (event as { choices: { delta: { content?: string } }[] }).choices.map(({ delta }) => delta),
    );
    expect(deltas.slice(0, 2)).toEqual([{ role: 'assistant', content: '' }, { content: 'I am a' }]);
    expect(deltas.map(({ content }) => content ?? '').join('')).toBe(echoed.choices[0]?.message.content);
  });
  test('an answer in another role repeats nothing', async () => {
    const echoed = await chat({ echo: true });
    expect(echoed.choices[0]?.message.content).toBe((await chat({})).choices[0]?.message.content);
  });
});

describe('prefix cache', () => {
  const long = [{ role: 'user', content: `Tell me about this list: ${'apples, pears, plums, '.repeat(20)}` }];
  const cached = async (fields: object) =>
    (await chat({ messages: long, ...fields })).usage.prompt_tokens_details.cached_tokens;
  test('the same prompt and salt find it again, others do not', async () => {
    expect(await cached({ cache_salt: 'a/+=' })).toBe(0);
    expect(await cached({ cache_salt: 'a/+=' })).toBeGreaterThan(0);
    expect(await cached({ cache_salt: 'b' })).toBe(0);
    expect(await cached({})).toBe(0);
    expect(await cached({})).toBeGreaterThan(0);
    expect(await cached({ prompt_logprobs: 0 })).toBe(0);
  });
  test('warm and cold answers are the same, and the hits are counted', async () => {
    const before = await server.metric('tandem_prefix_cache_hits_total');
    const answer = async (salt: string) => {
      const body = { messages: long, max_tokens: 12, seed: 5, temperature: 1, logprobs: true, cache_salt: salt };
      return (await post<{ choices: unknown[] }>(CHAT, body)).choices;
    };
    const cold = await answer('x');
    expect(await answer('x')).toEqual(cold);
    expect(await server.metric('tandem_prefix_cache_hits_total')).toBeGreaterThan(before);
  });
});

test('a repeating output ends', async () => {
  const { tokens } = await post<{ tokens: number[] }>('/tokenize', { prompt: ' a' });
  const bias = { logit_bias: { [String(tokens[0])]: 100 }, max_tokens: 50 };
  const rule = { max_pattern_size: 3, min_count: 6 };
  const answer = await chat({ ...bias, repetition_detection: rule });
  expect(answer.choices[0]).toMatchObject({ finish_reason: 'repetition', stop_reason: 'repetition_detected' });
  expect(answer.usage.completion_tokens).toBe(6);
  expect((await chat({ ...bias, repetition_detection: { max_pattern_size: 0 } })).choices[0]?.finish_reason).toBe(
    'length',
  );
});

test('service_tier tells of priority', async () => {
  expect((await chat({ priority: -3 })).service_tier).toBe('priority');
  expect((await chat({ priority: 0 })).service_tier).toBe('default');
});

describe('beam search', () => {
  const beams = { use_beam_search: true, n: 2, temperature: 0, max_tokens: 6 };
  test('gives n different outputs, the same for the same prompt, and streams them at the end', async () => {
    const answer = await chat(beams);
    const texts = answer.choices.map(({ message }) => message.content);
    expect(new Set(texts).size).toBe(2);
    const response = await server.post(CHAT, { messages, ...beams, stream: true });
    const streamed = ['', ''];
    for (const event of readEvents(await response.text())) {
      if (event === '[DONE]') continue;
      for (const choice of (event as { choices: { index: number; delta: { content?: string } }[] }).choices)
        streamed[choice.index] += choice.delta.content ?? '';
    }
    expect(streamed).toEqual(texts);
    const twice = await complete({ ...beams, prompt: ['The sky is', 'The sky is'] });
    const pieces = twice.choices.map(({ text }) => text);
    expect(pieces.slice(0, 2)).toEqual(pieces.slice(2));
    expect(pieces[0]).not.toBe(pieces[1]);
  });
  test('finds no worse than greedy decoding', async () => {
    const total = async (fields: object) => {
      const body = { messages, temperature: 0, max_tokens: 8, ignore_eos: true, logprobs: true, ...fields };
      const { choices } = await post<{ choices: { logprobs: { content: { logprob: number }[] } }[] }>(CHAT, body);
      return (choices[0]?.logprobs.content ?? []).reduce((sum, { logprob }) => sum + logprob, 0);
    };
    expect(await total({ use_beam_search: true, n: 4 })).toBeGreaterThanOrEqual((await total({})) - 1e-3);
  });
});

test('a chat template of the request', async () => {
  const template = '{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}';
  const count = async (fields: object) => (await post<{ count: number }>('/tokenize', { messages, ...fields })).count;
  expect(await count({ chat_template: template })).toBe(await count({ add_generation_prompt: false }));
  expect((await chat({ chat_template: template })).usage.prompt_tokens).toBe(await count({ chat_template: template }));
  const broken = await server.post(CHAT, { messages, chat_template: '{% for %}' });
  expect(broken.status).toBe(400);
});
