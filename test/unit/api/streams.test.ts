/** Streams and waits as their clients see them: order, failures, leaving, stalling. */
import { request } from 'node:http';
import { connect } from 'node:net';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { SessionError, type ChoiceDelta } from '../../../src/control/sessions/session.ts';
import { delta, errorOf, events, FakeSessions, KEY, startTestServer, type TestServer } from './fakes.ts';

const CHAT = '/v1/chat/completions';
const messages = [{ role: 'user', content: 'Hi' }];
const MAX_BUFFER = 256 * 1024;

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ maxStreamBufferBytes: MAX_BUFFER });
});
afterAll(() => server.close());
beforeEach(() => {
  server.sessions.script = new FakeSessions().script;
});

type Chunk = { choices: { index: number; delta: object; finish_reason: string | null }[]; error?: object };

async function until(condition: () => boolean): Promise<void> {
  for (let round = 0; round < 500 && !condition(); round++) await new Promise((resolve) => setTimeout(resolve, 10));
  expect(condition()).toBe(true);
}

describe('order', () => {
  test('roles of all choices, deltas, finishes, usage, DONE', async () => {
    const response = await server.post(CHAT, { messages, n: 2, stream: true, stream_options: { include_usage: true } });
    const got = events(await response.text());
    expect(
      got.map((event) =>
        event === '[DONE]'
          ? event
          : (event as Chunk).choices.map((choice) => [choice.index, choice.delta, choice.finish_reason]),
      ),
    ).toEqual([
      [[0, { role: 'assistant', content: '' }, null]],
      [[1, { role: 'assistant', content: '' }, null]],
      [[0, { content: 'Hello' }, null]],
      [[1, { content: 'Hello' }, null]],
      [[0, { content: ' there' }, 'stop']],
      [[1, { content: ' there' }, 'stop']],
      [],
      '[DONE]',
    ]);
    expect(server.sessions.generations.at(-1)?.streamed).toBe(true);
  });

  test('an unstreamed answer never counts as streamed', async () => {
    await (await server.post(CHAT, { messages })).json();
    expect(server.sessions.generations.at(-1)?.streamed).toBe(false);
  });

  test('held-back text sends nothing unless tokens were asked for', async () => {
    server.sessions.script = () => [
      delta({ tokenIds: [1] }),
      delta({ text: '😀', tokenIds: [2] }),
      delta({ tokenIds: [3], finish: 'stop' }),
    ];
    const deltas = async (fields: object) =>
      events(await (await server.post(CHAT, { messages, stream: true, ...fields })).text())
        .slice(1, -1)
        .map((event) => (event as Chunk).choices[0]?.delta);
    expect(await deltas({})).toEqual([{ content: '😀' }, {}]);
    expect(await deltas({ return_token_ids: true })).toEqual([{}, { content: '😀' }, {}]);
  });

  test('what several kinds of news came with is told once, with the first of them', async () => {
    const entry = { token: 'a', logprob: -1, bytes: [97], tokenId: 1, top: [], chars: 1, at: 0 };
    server.sessions.script = () => [
      delta({ reasoning: 'So', text: 'Yes', tokenIds: [1, 2], logprobs: [entry, entry], finish: 'stop' }),
    ];
    const fields = { stream: true, return_token_ids: true, logprobs: true };
    const got = events(await (await server.post(CHAT, { messages, ...fields })).text()).slice(1, -1);
    type Told = { choices: { delta: object; token_ids: number[]; logprobs: { content: object[] } | null }[] };
    const choices = got.map((event) => (event as Told).choices[0]);
    expect(choices.map((choice) => [choice?.delta, choice?.token_ids, choice?.logprobs?.content.length])).toEqual([
      [{ reasoning: 'So' }, [1, 2], 2],
      [{ content: 'Yes' }, [], undefined],
    ]);
  });

  test('hidden tokens count in the usage of every chunk, and only those that the chunks have told of', async () => {
    server.sessions.script = (_, generation) => {
      // Of the whole reply: the generation is ahead of its reader.
      generation.reasoningTokens = [4];
      return [
        delta({ tokens: 3, reasoningTokens: 3 }),
        delta({ tokens: 2, reasoningTokens: 1, text: 'Yes', tokenIds: [1] }),
        delta({ tokenIds: [2], finish: 'stop' }),
      ];
    };
    const metric = () => server.call('/metrics').then((response) => response.text());
    const generated = async () => Number(/^tandem_generation_tokens_total\S* (\d+)$/m.exec(await metric())?.[1] ?? 0);
    const before = await generated();
    const fields = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
    const got = events(await (await server.post(CHAT, { messages, include_reasoning: false, ...fields })).text());
    type Usage = { completion_tokens: number; completion_tokens_details: { reasoning_tokens: number } };
    expect(
      got
        .slice(0, -1)
        .map((event) => (event as { usage: Usage }).usage)
        .map((usage) => [usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens]),
    ).toEqual([
      [0, 0],
      [5, 4],
      [6, 4],
      [6, 4],
    ]);
    expect((await generated()) - before).toBe(6);
  });

  test('very many prompts of one request are nothing to warn of', async () => {
    const warnings: string[] = [];
    const note = (warning: Error) => void warnings.push(warning.message);
    process.on('warning', note);
    const prompt = Array.from({ length: 40 }, (_, at) => `prompt ${at}`);
    const response = await server.post('/v1/completions', { prompt, stream: true });
    expect(events(await response.text()).at(-1)).toBe('[DONE]');
    process.off('warning', note);
    expect(warnings).toEqual([]);
  });

  test('continuing a message answers with its role', async () => {
    const body = { messages: [...messages, { role: 'critic', content: 'So' }], continue_final_message: true };
    const whole = (await (await server.post(CHAT, body)).json()) as { choices: { message: { role: string } }[] };
    expect(whole.choices[0]?.message.role).toBe('critic');
    const got = events(await (await server.post(CHAT, { ...body, stream: true })).text());
    expect((got[0] as Chunk).choices[0]?.delta).toEqual({ role: 'critic', content: '' });
  });

  test('what one tick brings leaves in one write', async () => {
    server.sessions.script = () =>
      Array.from({ length: 50 }, (_, at) =>
        delta({ text: `${at} `, tokenIds: [1], finish: at === 49 ? 'stop' : null }),
      );
    const response = await server.post(CHAT, { messages, stream: true });
    let reads = 0;
    for await (const _ of response.body as unknown as AsyncIterable<Uint8Array>) reads++;
    expect(reads).toBeLessThan(10);
  });
});

describe('the whole answer', () => {
  test('has every field, nulls included', async () => {
    const response = await server.post(CHAT, { messages });
    expect(await response.json()).toEqual({
      id: expect.stringMatching(/^chatcmpl-[0-9a-f]{32}$/) as string,
      object: 'chat.completion',
      created: expect.any(Number) as number,
      model: 'first',
      choices: [
        {
          index: 0,
          message: {
            role: 'assistant',
            content: 'Hello there',
            refusal: null,
            annotations: null,
            audio: null,
            function_call: null,
            reasoning: null,
          },
          logprobs: null,
          finish_reason: 'stop',
          stop_reason: null,
          token_ids: null,
        },
      ],
      usage: { prompt_tokens: 3, total_tokens: 6, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 0 } },
      service_tier: 'default',
      system_fingerprint: 'fp_test',
      prompt_logprobs: null,
      prompt_token_ids: null,
      kv_transfer_params: null,
    });
  });

  test('logprobs are floored, and named by id when asked', async () => {
    const top = [{ token: 'a', logprob: -Infinity, bytes: [97], tokenId: 5 }];
    server.sessions.script = () => [
      delta({
        text: 'a',
        tokenIds: [5],
        finish: 'length',
        logprobs: [{ token: 'a', logprob: -Infinity, bytes: [97], tokenId: 5, top, chars: 1, at: 0 }],
      }),
    ];
    const read = async (fields: object) =>
      (
        (await (await server.post(CHAT, { messages, logprobs: true, top_logprobs: 1, ...fields })).json()) as {
          choices: { logprobs: object }[];
        }
      ).choices[0]?.logprobs;
    const entry = { token: 'a', logprob: -9999, bytes: [97] };
    expect(await read({})).toEqual({ content: [{ ...entry, top_logprobs: [entry] }] });
    const named = { ...entry, token: 'token_id:5' };
    expect(await read({ return_tokens_as_token_ids: true })).toEqual({
      content: [{ ...named, top_logprobs: [named] }],
    });
  });

  test('text completions', async () => {
    const response = await server.post('/v1/completions', {
      prompt: [[1, 2], [3]],
      n: 2,
      echo: true,
      return_token_ids: true,
    });
    const body = (await response.json()) as { choices: object[] };
    expect(body).toMatchObject({
      id: expect.stringMatching(/^cmpl-/) as string,
      object: 'text_completion',
      usage: { prompt_tokens: 6, completion_tokens: 12, total_tokens: 18 },
      kv_transfer_params: null,
    });
    expect(body.choices).toEqual(
      ['<1><2>', '<1><2>', '<3>', '<3>'].map((prompt, index) => ({
        index,
        text: `${prompt}Hello there`,
        logprobs: null,
        finish_reason: 'stop',
        stop_reason: null,
        token_ids: [10, 11, 2],
        prompt_logprobs: null,
        prompt_token_ids: [5, 6, 7],
      })),
    );
  });

  test('logprobs of text completions', async () => {
    const response = await server.post('/v1/completions', { prompt: 'x', logprobs: 2 });
    const { choices } = (await response.json()) as { choices: { logprobs: object }[] };
    expect(choices[0]?.logprobs).toEqual({
      text_offset: [0, 5, 11],
      token_logprobs: [0, 0, 0],
      tokens: ['<10>', '<11>', '<2>'],
      top_logprobs: [
        { '<10>': 0, '<11>': -1 },
        { '<11>': 0, '<12>': -1 },
        { '<2>': 0, '<3>': -1 },
      ],
    });
  });

  /** A model that begins its texts with <s>; the prompt's last character is two tokens. */
  test.each([false, true])('offsets with echo are those in the text (as ids: %j)', async (asIds) => {
    const prompt = ' Oh é';
    const texts = ['<s>', '  Oh', ' ', '', 'é'];
    const score = (tokenId: number) => ({ token: '?', logprob: -1, bytes: [], tokenId, rank: 1, top: [] });
    server.sessions.pieces = texts;
    server.sessions.script = (input, generation) => {
      generation.scores = texts.map((_, id) => (id === 0 ? null : score(id)));
      return new FakeSessions().script(input, generation);
    };
    const body = { prompt, echo: true, logprobs: 1, return_tokens_as_token_ids: asIds };
    const whole = (await (await server.post('/v1/completions', body)).json()) as { choices: Shown[] };
    const streamed = events(await (await server.post('/v1/completions', { ...body, stream: true })).text());
    type Shown = { text: string; logprobs: { tokens: string[]; text_offset: number[] } };
    const chunks = streamed.flatMap((event) => (event === '[DONE]' ? [] : (event as { choices: Shown[] }).choices));
    for (const choices of [whole.choices, chunks]) {
      expect(choices.map(({ text }) => text).join('')).toBe(`${prompt}Hello there`);
      expect(choices.flatMap(({ logprobs }) => logprobs.text_offset)).toEqual([0, 0, 3, 4, 4, 5, 10, 16]);
    }
    expect(whole.choices[0]?.logprobs.tokens[0]).toBe(asIds ? 'token_id:5' : '<5>');
  });
});

describe('failures', () => {
  const fail = (after: ChoiceDelta[]) =>
    async function* () {
      for (const item of after) yield item;
      throw new SessionError('engine_failed', 'page fault at 0x7f in /opt/x.so');
    };
  const error = { message: 'Internal server error', type: 'InternalServerError', param: null, code: 500 };

  test('in the middle of a stream: an error event, then DONE', async () => {
    server.sessions.script = fail([delta({ text: 'Hel', tokenIds: [1] })]);
    const response = await server.post(CHAT, { messages, stream: true, stream_options: { include_usage: true } });
    expect(response.status).toBe(200);
    const got = events(await response.text());
    expect(got.slice(2)).toEqual([{ error }, '[DONE]']);
  });
  test('before the first output: the error is the first event', async () => {
    server.sessions.script = fail([]);
    const got = events(await (await server.post(CHAT, { messages, stream: true })).text());
    expect(got).toEqual([{ error }, '[DONE]']);
  });
  test('unstreamed: 500', async () => {
    server.sessions.script = fail([delta({ text: 'Hel', tokenIds: [1] })]);
    const response = await server.post(CHAT, { messages });
    expect(response.status).toBe(500);
    expect(await errorOf(response)).toEqual(error);
  });
  test('of one prompt: all prompts of the request end', async () => {
    const before = server.sessions.generations.length;
    server.sessions.script = (input) => ((input.prompt as { text: string }).text === 'bad' ? fail([])() : endless());
    const response = await server.post('/v1/completions', { prompt: ['good', 'bad', 'good'] });
    expect(response.status).toBe(500);
    const own = server.sessions.generations.slice(before);
    expect(own.map((generation) => generation.aborted)).toEqual([true, true, true]);
  });
  test('a prompt refused after another was accepted: that one ends too', async () => {
    const before = server.sessions.generations.length;
    const start = server.sessions.start.bind(server.sessions);
    server.sessions.start = (input) =>
      (input.prompt as { text: string }).text === 'bad'
        ? Promise.reject(new SessionError('queue_full', 'full'))
        : start(input);
    const response = await server.post('/v1/completions', { prompt: ['good', 'bad'] });
    server.sessions.start = start;
    expect(response.status).toBe(429);
    expect(server.sessions.generations.slice(before).map((generation) => generation.aborted)).toEqual([true]);
  });
});

async function* endless(): AsyncGenerator<ChoiceDelta> {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    yield delta({ text: 'x', tokenIds: [1] });
  }
}

describe('clients that leave', () => {
  test.each([true, false])('stream: %s', async (stream) => {
    server.sessions.script = endless;
    const abort = new AbortController();
    const before = server.sessions.generations.length;
    const call = server.call(CHAT, {
      method: 'POST',
      body: JSON.stringify({ messages, stream }),
      headers: { 'content-type': 'application/json' },
      signal: abort.signal,
    });
    call.catch(() => undefined);
    await until(() => server.sessions.generations.length > before);
    if (stream) await (await call).body?.getReader().read();
    expect(server.sessions.generations.at(-1)?.aborted).toBe(false);
    abort.abort();
    await until(() => server.sessions.generations.at(-1)?.aborted === true);
  });

  test('while the request still waits for its first token', async () => {
    server.sessions.script = async function* (_input, generation) {
      await generation.untilAborted();
      yield* [];
    };
    const abort = new AbortController();
    const before = server.sessions.generations.length;
    const headers = { 'content-type': 'application/json' };
    const call = server.call(CHAT, {
      method: 'POST',
      body: JSON.stringify({ messages }),
      headers,
      signal: abort.signal,
    });
    call.catch(() => undefined);
    await until(() => server.sessions.generations.length > before);
    abort.abort();
    await until(() => server.sessions.generations.at(-1)?.aborted === true);
  });

  test('while the request is being taken in', async () => {
    server.sessions.script = async function* (_input, generation) {
      await generation.untilAborted();
      yield* [];
    };
    const start = server.sessions.start.bind(server.sessions);
    let taken = () => {};
    const asked = new Promise<void>((resolve) => {
      server.sessions.start = (input) => {
        resolve();
        return new Promise((go) => (taken = () => go(start(input))));
      };
    });
    const abort = new AbortController();
    const gone = server.call(CHAT, {
      method: 'POST',
      body: JSON.stringify({ messages }),
      headers: { 'content-type': 'application/json' },
      signal: abort.signal,
    });
    await asked;
    server.sessions.start = start;
    abort.abort();
    await expect(gone).rejects.toThrow();
    // Its end has come to the server too.
    const before = server.sessions.generations.length;
    await new Promise((resolve) => setTimeout(resolve, 100));
    taken();
    await until(() => server.sessions.generations[before]?.aborted === true);
  });

  test('in the middle of their body', async () => {
    const before = server.sessions.inputs.length;
    const socket = connect(server.port, '127.0.0.1');
    socket.write(
      `POST ${CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${KEY}\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"mess`,
    );
    await new Promise((resolve) => setTimeout(resolve, 50));
    socket.destroy();
    expect((await server.post(CHAT, { messages })).status).toBe(200);
    expect(server.sessions.inputs.length).toBe(before + 1);
  });
});

describe('readers that stall', () => {
  test('are cut when the limit is passed; what was buffered stays near it', async () => {
    let produced = 0;
    const piece = 'x'.repeat(16 * 1024);
    server.sessions.script = async function* () {
      for (;;) {
        await new Promise((resolve) => setImmediate(resolve));
        produced += piece.length;
        yield delta({ text: piece, tokenIds: [1] });
      }
    };
    const body = JSON.stringify({ messages, stream: true });
    const client = request(server.url + CHAT, {
      method: 'POST',
      headers: { authorization: `Bearer ${KEY}`, 'content-type': 'application/json' },
    });
    client.on('error', () => undefined);
    // Never read.
    client.on('response', (response) => response.on('error', () => undefined).pause());
    const before = server.sessions.generations.length;
    client.end(body);
    await until(() => server.sessions.generations.length > before);
    await until(() => server.sessions.generations.at(-1)?.aborted === true);
    // The kernel's socket buffers come on top of ours.
    expect(produced).toBeLessThan(MAX_BUFFER + 32 * 1024 * 1024);
    client.destroy();
  });

  test.each([
    ['the scores of a long prompt', CHAT, { messages, prompt_logprobs: 0 }],
    ['a long prompt that comes back', '/v1/completions', { prompt: 'x'.repeat(8 * MAX_BUFFER), echo: true, n: 3 }],
  ])('%s may be more than a reader may leave', async (_, path, body) => {
    const score = { token: 'token', logprob: -1, bytes: [], tokenId: 5, top: [], rank: 1 };
    server.sessions.script = (input, generation) => {
      generation.scores = Array.from({ length: 50_000 }, () => score);
      return Array.from({ length: input.sampling.n }, (_, index) => delta({ index, text: 'a', finish: 'stop' }));
    };
    const text = await (await server.post(path, { ...body, stream: true })).text();
    expect(text.length).toBeGreaterThan(8 * MAX_BUFFER);
    expect(events(text).at(-1)).toBe('[DONE]');
  });

  test('a reader that takes its time but reads gets everything', async () => {
    const pieces = Array.from({ length: 40 }, (_, at) => String(at).padStart(1000, '.'));
    server.sessions.script = () =>
      pieces.map((text, at) => delta({ text, tokenIds: [1], finish: at === 39 ? 'stop' : null }));
    const response = await server.post(CHAT, { messages, stream: true });
    let text = '';
    const decoder = new TextDecoder();
    for await (const bytes of response.body as unknown as AsyncIterable<Uint8Array>) {
      await new Promise((resolve) => setTimeout(resolve, 5));
      text += decoder.decode(bytes, { stream: true });
    }
    const got = events(text) as Chunk[];
    expect(got.slice(1, -1).map((chunk) => (chunk.choices[0]?.delta as { content: string }).content)).toEqual(pieces);
    expect(got.at(-1)).toBe('[DONE]');
  });
});

test('while draining nothing new begins', async () => {
  const draining = await startTestServer({}, { draining: () => true });
  const response = await draining.post(CHAT, { messages });
  expect(response.status).toBe(503);
  expect(response.headers.get('connection')).toBe('close');
  expect((await draining.post('/v1/completions', { prompt: ['a', 'b'] })).status).toBe(503);
  expect(draining.sessions.generations).toEqual([]);
  expect((await draining.call('/ready')).status).toBe(503);
  await draining.close();
});

describe('the end by repetition', () => {
  test.each([
    ['vllm', 'repetition'],
    ['openai', 'stop'],
  ] as const)('as %s names it', async (repetitionFinishReason, name) => {
    const own = await startTestServer({ repetitionFinishReason });
    try {
      own.sessions.script = () => [
        delta({ text: 'aaa', tokenIds: [1, 1, 1], finish: 'repetition', stopReason: 'repetition_detected' }),
      ];
      const whole = (await (await own.post(CHAT, { messages })).json()) as { choices: object[] };
      expect(whole.choices[0]).toMatchObject({ finish_reason: name, stop_reason: 'repetition_detected' });
      const got = events(await (await own.post(CHAT, { messages, stream: true })).text());
      expect((got.at(-2) as Chunk).choices[0]?.finish_reason).toBe(name);
      const metrics = await (await own.call('/metrics')).text();
      expect(metrics).toMatch(/request_success_total\{[^}]*finished_reason="repetition"[^}]*\} 2/);
    } finally {
      await own.close();
    }
  });
});
