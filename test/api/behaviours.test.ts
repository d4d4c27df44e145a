/** Single behaviours of the chat endpoint on the starter model: lengths, defaults of the model, keys, metrics. */
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ApiServer, readEvents } from './server.ts';
import { STARTER } from '../fixtures/starter.ts';

const PATH = '/v1/chat/completions';
const messages = [{ role: 'user', content: 'Hello! What can you do?' }];

interface Answer {
  model: string;
  choices: { message: { content: string }; finish_reason: string }[];
  usage: { prompt_tokens: number; completion_tokens: number; total_tokens: number };
  error?: { message: string; param: string | null };
}

let directory: string;
let server: ApiServer;
beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-behaviours-'));
  cpSync(STARTER, directory, { recursive: true, filter: (path) => !path.includes('recipe') });
  const path = join(directory, 'generation_config.json');
  const config = JSON.parse(readFileSync(path, 'utf8')) as object;
  writeFileSync(path, JSON.stringify({ ...config, temperature: 0.5, top_p: 1, max_new_tokens: 20 }));
  server = await ApiServer.start({
    flags: ['--model', directory, '--served-model-name', 'starter', '--max-model-len', '128'],
  });
}, 90_000);
afterAll(async () => {
  await server?.stop();
  rmSync(directory, { recursive: true, force: true });
});

async function chat(fields: object): Promise<{ status: number; body: Answer }> {
  const response = await server.post(PATH, { messages, ...fields });
  return { status: response.status, body: (await response.json()) as Answer };
}
const text = async (fields: object) => (await chat(fields)).body.choices[0]?.message.content;

test('max_completion_tokens with ignore_eos', async () => {
  const { body } = await chat({ max_completion_tokens: 5, ignore_eos: true });
  expect(body.choices).toHaveLength(1);
  expect(body.choices[0]).toMatchObject({ finish_reason: 'length', message: { role: 'assistant' } });
  expect(body.usage.completion_tokens).toBe(5);
  expect(body.usage.total_tokens).toBe(body.usage.prompt_tokens + 5);
});

describe("the model's own defaults", () => {
  const sampled = { seed: 3, ignore_eos: true, max_tokens: 16 };
  test('temperature is used when absent, overridden when given, and 0 is not absent', async () => {
    const absent = await text(sampled);
    expect(await text({ ...sampled, temperature: null })).toBe(absent);
    expect(await text({ ...sampled, temperature: 0.5 })).toBe(absent);
    expect(await text({ ...sampled, temperature: 3 })).not.toBe(absent);
    const greedy = await text({ ...sampled, temperature: 0 });
    expect(await text({ ...sampled, temperature: 0, seed: 99 })).toBe(greedy);
  });
  test('max_new_tokens is the length where none is given', async () => {
    const { body } = await chat({ ignore_eos: true });
    expect(body.usage.completion_tokens).toBe(20);
    expect((await chat({ ignore_eos: true, max_tokens: 30 })).body.usage.completion_tokens).toBe(30);
  });
});

describe('lengths at the context of 128', () => {
  /** A text prompt of exactly this many tokens. */
  async function promptOf(tokens: number): Promise<number[]> {
    const answer = (await (await server.post('/tokenize', { prompt: 'a b '.repeat(200) })).json()) as {
      tokens: number[];
    };
    return answer.tokens.slice(0, tokens);
  }
  const complete = async (prompt: number[], fields: object = {}) => {
    const response = await server.post('/v1/completions', { prompt, ignore_eos: true, ...fields });
    return { status: response.status, body: (await response.json()) as Answer };
  };
  test('a prompt of context - 1 leaves one token', async () => {
    const { status, body } = await complete(await promptOf(127), { max_tokens: 1 });
    expect(status).toBe(200);
    expect(body.usage.completion_tokens).toBe(1);
  });
  test.each([128, 200])('a prompt of %d tokens is too long', async (tokens) => {
    const { status, body } = await complete(await promptOf(tokens), { max_tokens: 1 });
    expect(status).toBe(400);
    expect(body.error?.param).toBe('input_tokens');
    expect(body.error?.message).toContain('maximum context length is 128 tokens');
  });
  test('prompt and output together, streamed or not', async () => {
    for (const stream of [false, true]) {
      const { status, body } = await chat({ max_tokens: 120, stream });
      expect(status).toBe(400);
      expect(body.error?.param).toBe('max_tokens');
    }
  });
});

test('top_logprobs at and beyond the limit; the next request works', async () => {
  for (const stream of [false, true]) {
    expect((await chat({ logprobs: true, top_logprobs: 21, stream })).status).toBe(400);
    expect(
      (await server.post(PATH, { messages, logprobs: true, top_logprobs: 20, max_tokens: 2, stream })).status,
    ).toBe(200);
  }
});

test('a message may be continued', async () => {
  const prefix = [...messages, { role: 'assistant', content: 'I am a' }];
  const { status, body } = await chat({
    messages: prefix,
    continue_final_message: true,
    temperature: 0,
    max_tokens: 4,
  });
  expect(status).toBe(200);
  const fresh = (await (await server.post('/tokenize', { messages: prefix, continue_final_message: true })).json()) as {
    count: number;
  };
  expect(body.usage.prompt_tokens).toBe(fresh.count);
});

test('special tokens written by a user stay text', async () => {
  const count = async (content: string) => {
    const answer = (await (await server.post('/tokenize', { messages: [{ role: 'user', content }] })).json()) as {
      count: number;
    };
    return answer.count;
  };
  expect(await count('<|im_end|>')).toBeGreaterThan((await count('x')) + 1);
});

test('hostile bodies leave the server as it was', async () => {
  const before = await server.metric('tandem_request_success_total');
  const bodies: object[] = [
    { n: 1e9 },
    { stop: Array.from({ length: 100_000 }, (_, at) => `${at}`) },
    { stop: 'x'.repeat(1_000_000) },
    { logit_bias: Object.fromEntries(Array.from({ length: 100_000 }, (_, at) => [at, 1])) },
    { bad_words: Array.from({ length: 100_000 }, () => 'x') },
    { temperature: 1e308, top_k: -2 },
    { messages: Array.from({ length: 100_000 }, () => ({ role: 'user', content: 'x' })) },
    { request_id: 'a\nb' },
    { chat_template_kwargs: { constructor: { prototype: { x: 1 } }, tokenize: false } },
    { allowed_token_ids: [-1] },
    { repetition_detection: { max_pattern_size: 1e9, min_pattern_size: -1, min_count: 0 } },
    { min_tokens: 5, max_tokens: 4 },
  ];
  for (const body of bodies) {
    const { status, body: answer } = await chat(body);
    expect(status, JSON.stringify(Object.keys(body))).toBe(400);
    expect(answer.error?.message.length).toBeLessThan(600);
    expect(answer.error?.message).not.toMatch(/\.ts|\.js|node_modules|0x[0-9a-f]{6}/);
  }
  for (const extreme of [
    { temperature: 1e308 },
    { temperature: 1e-300 },
    { min_p: 1 },
    { top_p: 1e-300 },
    { top_k: 2 ** 53 },
  ]) {
    expect((await chat({ ...extreme, max_tokens: 3 })).status, JSON.stringify(extreme)).toBe(200);
  }
  expect(await server.metric('tandem_request_success_total')).toBeGreaterThanOrEqual(before || 0);
});

test('a stream and its whole answer agree over many seeds', async () => {
  for (let seed = 0; seed < 5; seed++) {
    const fields = { seed, temperature: 1.2, max_tokens: 20, n: 2 };
    const whole = (await chat(fields)).body.choices.map((choice) => [choice.message.content, choice.finish_reason]);
    const response = await server.post(PATH, { messages, stream: true, ...fields });
    const parts = ['', ''];
    const finishes = ['', ''];
    for (const event of readEvents(await response.text())) {
      if (event === '[DONE]') continue;
      const [choice] = (
        event as { choices: { index: number; delta: { content?: string }; finish_reason: string | null }[] }
      ).choices;
      if (!choice) continue;
      parts[choice.index] += choice.delta.content ?? '';
      finishes[choice.index] += choice.finish_reason ?? '';
    }
    expect(parts.map((part, at) => [part, finishes[at]])).toEqual(whole);
  }
});
