/** /v1/messages over sessions in memory: answers, how a stream goes and ends, keys, errors. */
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import type { ApiDeps } from '../../../src/api/deps.ts';
import type { ResolvedModel } from '../../../src/control/models/resolver.ts';
import { PING_MS } from '../../../src/api/sse/pings.ts';
import type { ChoiceDelta } from '../../../src/control/sessions/session.ts';
import type { MessageObject, MessagesErrorBody } from '../../../src/schemas/message-object.ts';
import { delta, errorOf, FakeSessions, KEY, startTestServer, type TestServer } from './fakes.ts';
import { AskingMessages, COUNT, HI, PATH } from './messages-asking.ts';

let server: TestServer;
const asking = new AskingMessages(() => server);
beforeAll(async () => {
  server = await startTestServer();
});
afterAll(() => server.close());
beforeEach(() => {
  server.sessions.script = new FakeSessions().script;
});

const tools = [{ name: 'f', input_schema: { type: 'object' } }];
const json = { 'content-type': 'application/json' };

describe('answers', () => {
  test('have every field', async () => {
    server.sessions.script = (_, generation) => {
      generation.usage = () => ({ promptTokens: 9, completionTokens: [3], reasoningTokens: [1], cachedTokens: 4 });
      return [
        delta({ reasoning: 'hm', tokenIds: [1] }),
        delta({ text: 'Yes', tokenIds: [2] }),
        delta({ toolCalls: [{ index: 0, id: 'chatcmpl-tool-1', name: 'f' }], tokenIds: [3] }),
        delta({ toolCalls: [{ index: 0, arguments: '{"x": 1}' }], tokenIds: [4], finish: 'tool_calls' }),
      ];
    };
    expect(await asking.answer({ tools, request_id: 'mine' })).toEqual({
      id: 'msg_mine',
      type: 'message',
      role: 'assistant',
      model: 'first',
      content: [
        { type: 'thinking', thinking: 'hm', signature: expect.stringMatching(/./) as string },
        { type: 'text', text: 'Yes' },
        { type: 'tool_use', id: 'toolu_1', name: 'f', input: { x: 1 } },
      ],
      stop_reason: 'tool_use',
      stop_sequence: null,
      usage: {
        input_tokens: 5,
        cache_creation_input_tokens: 0,
        cache_read_input_tokens: 4,
        output_tokens: 3,
        output_tokens_details: { thinking_tokens: 1 },
        service_tier: 'standard',
      },
    });
  });

  const call = { toolCalls: [{ index: 0, id: 'c', name: 'f', arguments: '{}' }] };
  const cutCall = { toolCalls: [{ index: 0, id: 'c', name: 'f', arguments: '{"x": ' }] };
  test.each<[string, Partial<ChoiceDelta>, string, string | null]>([
    ['the end', { finish: 'stop' }, 'end_turn', null],
    ['an end token of the model', { finish: 'stop', stopReason: 7 }, 'end_turn', null],
    ['nothing that may come', { finish: 'stop', stopReason: 'no_token_allowed' }, 'end_turn', null],
    ['a stop sequence', { finish: 'stop', stopReason: 'x' }, 'stop_sequence', 'x'],
    ['the limit', { finish: 'length', tokenIds: Array.from({ length: 10 }, () => 1) }, 'max_tokens', null],
    ['the end of the context', { finish: 'length', tokenIds: [1] }, 'model_context_window_exceeded', null],
    ['calls', { finish: 'tool_calls', ...call }, 'tool_use', null],
    ['a named call, which chats end with stop', { finish: 'stop', ...call }, 'tool_use', null],
    ['a call that broke off', { finish: 'stop', ...cutCall }, 'end_turn', null],
    ['a stop sequence behind a call', { finish: 'stop', stopReason: 'x', ...call }, 'stop_sequence', 'x'],
  ])('end by %s', async (_, last, stop_reason, stop_sequence) => {
    server.sessions.script = () => [delta({ text: 'So' }), delta(last)];
    const fields = { stop_sequences: ['x'], tools };
    expect(await asking.answer(fields)).toMatchObject({ stop_reason, stop_sequence });
    const told = { type: 'message_delta', delta: { stop_reason, stop_sequence } };
    expect((await asking.events(fields)).at(-2)).toMatchObject(told);
  });

  test('of nothing have no blocks', async () => {
    server.sessions.script = () => [delta({ finish: 'stop', tokenIds: [2] })];
    expect(await asking.answer({})).toMatchObject({ content: [], stop_reason: 'end_turn' });
    expect((await asking.events({})).map(({ type }) => type)).toEqual([
      'message_start',
      'message_delta',
      'message_stop',
    ]);
  });

  test('say whether they went before others', async () => {
    const busy = await startTestServer({ schedulingPolicy: 'priority' });
    const own = new AskingMessages(() => busy);
    expect((await own.answer({ priority: -1 })).usage.service_tier).toBe('priority');
    expect((await own.answer({})).usage.service_tier).toBe('standard');
    await busy.close();
  });

  test('that grow too large are refused', async () => {
    const small = await startTestServer({ maxAnswerBytes: 1000 });
    small.sessions.script = () => [delta({ text: 'x'.repeat(2000), finish: 'stop' })];
    const refusal = await new AskingMessages(() => small).refusal({});
    expect(refusal).toMatchObject({ status: 400, type: 'invalid_request_error' });
    expect(refusal.message).toContain('--max-answer-size');
    await small.close();
  });
});

describe('streams', () => {
  test('tell the whole answer, with the tokens of the prompt first and those of the reply last', async () => {
    const events = await asking.events({ request_id: 'one' });
    const tokens = { input_tokens: 3, cache_creation_input_tokens: 0, cache_read_input_tokens: 0 };
    const { id, ...rest } = await asking.answer({ request_id: 'one' });
    expect(events).toEqual([
      {
        type: 'message_start',
        message: {
          ...{ ...rest, id, content: [], stop_reason: null },
          usage: { ...tokens, output_tokens: 0, service_tier: 'standard' },
        },
      },
      { type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } },
      { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'Hello' } },
      { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: ' there' } },
      { type: 'content_block_stop', index: 0 },
      {
        type: 'message_delta',
        delta: { stop_reason: 'end_turn', stop_sequence: null },
        usage: { ...tokens, output_tokens: 3 },
      },
      { type: 'message_stop' },
    ]);
  });

  /** One that says nothing before `release` is called. */
  async function heldStream() {
    let release: () => void = () => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    server.sessions.script = async function* (_, generation) {
      await held;
      generation.usage = () => ({ promptTokens: 3, completionTokens: [1], reasoningTokens: null, cachedTokens: 2 });
      yield delta({ text: 'Yes', tokenIds: [1], finish: 'stop' });
    };
    const response = await server.post(PATH, { ...HI, stream: true });
    const reader = response.body?.getReader();
    const decoder = new TextDecoder();
    const read = async () => decoder.decode((await reader?.read())?.value);
    const rest = async () => {
      let text = '';
      for (let piece = await read(); piece !== ''; piece = await read()) text += piece;
      return text;
    };
    return { response, read, rest, release };
  }

  test('begin before the first token, do not count as streamed until it comes, and then say what was cached', async () => {
    const { response, read, rest, release } = await heldStream();
    expect(response.headers.get('content-type')).toContain('text/event-stream');
    const first = await read();
    expect(first).toMatch(/^event: message_start\n.*"input_tokens":3,.*"cache_read_input_tokens":0,.*\n\n$/);
    expect(server.sessions.generations.at(-1)?.streamed).toBe(false);
    release();
    const after = await rest();
    expect(after).toMatch(/event: message_delta\n.*"input_tokens":1,.*"cache_read_input_tokens":2,/);
    expect(after).toMatch(/event: message_stop\ndata: .*\n\n$/);
    expect(server.sessions.generations.at(-1)?.streamed).toBe(true);
  });

  test('say that they live where nothing comes for long', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    try {
      const timers = vi.getTimerCount();
      const { read, rest, release } = await heldStream();
      expect(await read()).toMatch(/^event: message_start\n/);
      vi.advanceTimersByTime(2 * PING_MS);
      expect(await read()).toBe('event: ping\ndata: {"type":"ping"}\n\n');
      vi.advanceTimersByTime(PING_MS);
      expect(await read()).toBe('event: ping\ndata: {"type":"ping"}\n\n');
      release();
      expect(await rest()).toMatch(/event: message_stop\n/);
      await expect.poll(() => vi.getTimerCount()).toBe(timers);
    } finally {
      vi.useRealTimers();
    }
  });

  test('of an engine that fails end with an error, and nothing of the inside', async () => {
    server.sessions.script = async function* () {
      yield delta({ text: 'So', tokenIds: [1] });
      await Promise.resolve();
      throw new Error('secret');
    };
    const error = { type: 'api_error', message: 'Internal server error' };
    expect((await asking.events({})).at(-1)).toEqual({
      type: 'error',
      error,
      request_id: expect.stringMatching(/^req_/) as string,
    });
    expect(await asking.refusal({})).toEqual({ status: 500, ...error });
  });

  test('of clients that leave end the generation', async () => {
    server.sessions.script = async function* (_, generation) {
      yield delta({ text: 'So', tokenIds: [1] });
      await generation.untilAborted();
    };
    const leaving = new AbortController();
    const response = await fetch(server.url + PATH, {
      method: 'POST',
      headers: { 'x-api-key': KEY, ...json },
      body: JSON.stringify({ ...HI, stream: true }),
      signal: leaving.signal,
    });
    await response.body?.getReader().read();
    leaving.abort();
    await expect.poll(() => server.sessions.generations.at(-1)?.aborted).toBe(true);
  });
});

describe('keys', () => {
  const status = async (path: string, headers: Record<string, string>) => {
    const body = JSON.stringify(HI);
    return (await fetch(server.url + path, { method: 'POST', headers: { ...json, ...headers }, body })).status;
  };

  test('come in x-api-key or in Authorization, and one of them is enough', async () => {
    for (const path of [PATH, COUNT]) {
      expect(await status(path, { 'x-api-key': KEY })).toBe(200);
      expect(await status(path, { authorization: `Bearer ${KEY}` })).toBe(200);
      expect(await status(path, { authorization: 'Bearer other', 'x-api-key': KEY })).toBe(200);
      expect(await status(path, { authorization: `Bearer ${KEY}`, 'x-api-key': 'other' })).toBe(200);
      for (const key of ['', 'other', `${KEY}x`, `Bearer ${KEY}`, 'k'.repeat(8000)]) {
        expect(await status(path, { 'x-api-key': key }), key).toBe(401);
      }
    }
  });

  test('in x-api-key count nowhere else', async () => {
    for (const path of ['/v1/chat/completions', '/v1/modelsx', '/v1/messagesx', '/V1/messages', '//v1/messages']) {
      expect(await status(path, { 'x-api-key': KEY }), path).toBe(401);
    }
  });
});

describe('errors', () => {
  const refused = async (path: string, init: RequestInit, own = server) => {
    const response = await fetch(own.url + path, init);
    const body = (await response.json()) as MessagesErrorBody;
    expect(body.request_id).toBe(response.headers.get('request-id'));
    return [response.status, body.type, body.error.type];
  };
  const key = { 'x-api-key': KEY };

  test('have the shape of this interface on its paths alone', async () => {
    expect(await refused(PATH, { method: 'POST' })).toEqual([401, 'error', 'authentication_error']);
    expect(await refused(PATH, { headers: key })).toEqual([405, 'error', 'invalid_request_error']);
    expect(await refused(`${PATH}/batches`, { headers: key })).toEqual([404, 'error', 'not_found_error']);
    const plain = { method: 'POST', headers: { ...key, 'content-type': 'text/plain' }, body: '{}' };
    expect(await refused(PATH, plain)).toEqual([400, 'error', 'invalid_request_error']);
    const chat = await server.post('/v1/chat/completions', {});
    expect(chat.headers.get('request-id')).toBe(null);
    expect(await errorOf(chat)).toMatchObject({ code: 400, param: 'messages' });
  });

  test('each answer has an id of its own', async () => {
    const ids = await Promise.all([1, 2].map(async () => (await server.post(PATH, HI)).headers.get('request-id')));
    expect(new Set(ids).size).toBe(2);
  });

  test('while the server drains, nothing is begun', async () => {
    const leaving = await startTestServer({}, { draining: () => true });
    const body = JSON.stringify({ ...HI, stream: true });
    const init = { method: 'POST', headers: { ...key, ...json }, body };
    expect(await refused(PATH, init, leaving)).toEqual([503, 'error', 'overloaded_error']);
    await leaving.close();
  });

  test('a body that does not arrive', async () => {
    const hasty = await startTestServer({ requestTimeoutMs: 100 });
    const body = new ReadableStream({ start: (controller) => controller.enqueue(new TextEncoder().encode('{')) });
    const init = { method: 'POST', headers: { ...key, ...json }, body, duplex: 'half' as const };
    expect(await refused(PATH, init, hasty)).toEqual([408, 'error', 'invalid_request_error']);
    await hasty.close();
  });
});

test('what a trained model said is remembered under the id of the message', async () => {
  const adapter = { version: 'v', path: 'p', rank: 1, alpha: 1 } as unknown as NonNullable<ResolvedModel['adapter']>;
  const model: ResolvedModel = { displayName: 'mine', adapter, trainable: true };
  const resolver = { resolve: () => Promise.resolve(model) } as unknown as ApiDeps['models'];
  const training = await startTestServer({}, { models: resolver });
  const response = await training.post(PATH, { ...HI, request_id: 'r' });
  const { id, model: name } = (await response.json()) as MessageObject;
  expect([id, name]).toEqual(['msg_r', 'mine']);
  const [sample] = training.deps.samples.find(id, 'default') ?? [];
  expect(Array.from(sample?.tokenIds ?? [])).toEqual([10, 11, 2]);
  expect(training.deps.samples.find('r', 'default')).toEqual([sample]);
  await training.close();
});
