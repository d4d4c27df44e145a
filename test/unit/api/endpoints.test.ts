/** The small endpoints: models, health, metrics, tokenize, and the fields of text completions. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { SessionError } from '../../../src/control/sessions/session.ts';
import { delta, errorOf, startTestServer, type TestServer } from './fakes.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({
    vllmMetricNames: true,
    maxNumSeqs: 4,
    maxWaitingRequests: 28,
    allowRuntimeLoraUpdating: true,
  });
});
afterAll(() => server.close());

test('models', async () => {
  const list = (await (await server.call('/v1/models')).json()) as { object: string; data: object[] };
  expect(list.object).toBe('list');
  expect(list.data).toMatchObject([
    { id: 'first', object: 'model', created: 1, owned_by: 'tandem', root: 'model', parent: null, max_model_len: 128 },
    { id: 'second' },
  ]);
});

test('version', async () => {
  expect(await (await server.call('/version')).json()).toEqual({ version: '0.0.0' });
});

test('health and readiness follow the engine', async () => {
  const statuses = async () =>
    Promise.all(['/health', '/v1/health', '/ping', '/ready'].map(async (path) => (await server.call(path)).status));
  expect(await statuses()).toEqual([200, 200, 200, 200]);
  for (const state of ['starting', 'restarting', 'draining'] as const) {
    server.engine.state = state;
    expect(await statuses()).toEqual([200, 200, 200, 503]);
  }
  server.engine.state = 'dead';
  expect(await statuses()).toEqual([503, 503, 503, 503]);
  server.engine.state = 'ready';
});

test('health is JSON for clients of the training endpoints, and empty for others', async () => {
  const bodies = ['/health', '/ping', '/v1/health'].map(async (path) => (await server.call(path)).text());
  expect(await Promise.all(bodies)).toEqual(['', '', '{"status":"ok"}']);
});

describe('metrics', () => {
  const text = async () => (await server.call('/metrics')).text();

  test('the engine counters and their aliases', async () => {
    server.engine.counters = {
      ...server.engine.counters,
      running: 3,
      waiting: 2,
      pagesTotal: 8,
      pagesUsed: 2,
      preemptions: 4,
      speculation: { drafts: 5, draftTokens: 20, acceptedTokens: 7, acceptedPerPosition: [4, 3] },
    };
    const metrics = await text();
    const labels = '{model_name="first",engine="0"}';
    for (const prefix of ['tandem_', 'vllm:']) {
      expect(metrics).toContain(`${prefix}num_requests_running${labels} 3`);
      expect(metrics).toContain(`${prefix}num_requests_waiting${labels} 2`);
      expect(metrics).toContain(`${prefix}kv_cache_usage_perc${labels} 0.25`);
      expect(metrics).toContain(`${prefix}num_preemptions_total${labels} 4`);
      const bucket = (le: string) => `${prefix}iteration_tokens_total_bucket{model_name="first",engine="0",le="${le}"}`;
      for (const [le, count] of Object.entries({ 1: 2, 8: 3, 16_384: 3, '+Inf': 3 }))
        expect(metrics).toContain(`${bucket(le)} ${count}`);
      expect(metrics).toContain(`${prefix}iteration_tokens_total_sum${labels} 9`);
      expect(metrics).toContain(`${prefix}iteration_tokens_total_count${labels} 3`);
      expect(metrics).toContain(`${prefix}spec_decode_num_drafts_total${labels} 5`);
      expect(metrics).toContain(`${prefix}spec_decode_num_draft_tokens_total${labels} 20`);
      expect(metrics).toContain(`${prefix}spec_decode_num_accepted_tokens_total${labels} 7`);
      const position = (index: number) => `{model_name="first",engine="0",position="${index}"}`;
      for (const [index, count] of [4, 3].entries())
        expect(metrics).toContain(`${prefix}spec_decode_num_accepted_tokens_per_pos_total${position(index)} ${count}`);
    }
    expect(metrics).not.toMatch(/vllm:(http|process|nodejs|engine)_/);
  });

  test('requests are counted once', async () => {
    const read = async (name: string) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(await text())?.[1] ?? 0);
    const success = 'tandem_request_success_total\\{model_name="first",engine="0",finished_reason="stop"\\}';
    const sample = (name: string) => `tandem_${name}\\{model_name="first",engine="0"\\}`;
    const names = [
      success,
      ...[
        'prompt_tokens_total',
        'generation_tokens_total',
        'time_to_first_token_seconds_count',
        'request_params_n_sum',
      ].map(sample),
    ];
    const all = () => Promise.all(names.map(read));
    const before = await all();
    await (await server.post('/v1/chat/completions', { messages: [{ role: 'user', content: 'Hi' }], n: 2 })).json();
    const after = await all();
    expect(after.map((value, at) => value - (before[at] ?? 0))).toEqual([2, 3, 6, 1, 2]);
  });

  test('a request is none of them where one of its prompts is refused after another was accepted', async () => {
    const counts = async () =>
      (await text()).split('\n').filter((line) => /^tandem_(prompt_tokens_total|request_params)/.test(line));
    const before = await counts();
    const start = server.sessions.start.bind(server.sessions);
    server.sessions.start = (input) =>
      (input.prompt as { text: string }).text === 'bad'
        ? Promise.reject(new SessionError('queue_full', 'full'))
        : start(input);
    const response = await server.post('/v1/completions', { prompt: ['good', 'bad'] });
    server.sessions.start = start;
    expect(response.status).toBe(429);
    expect(before).not.toEqual([]);
    expect(await counts()).toEqual(before);
  });

  test('adapters of requests that run and wait, by the names that the operator gave', async () => {
    const info = async () => /^tandem_lora_requests_info\{(.*)\} \d/m.exec(await text())?.[1];
    const labels = (running: string, waiting: string) =>
      `max_lora="4",running_lora_adapters="${running}",waiting_lora_adapters="${waiting}"`;
    const { metrics } = server.deps;
    const named = (displayName: string, trainable = false) => ({
      adapter: { version: displayName, directory: '/' },
      trainable,
      displayName,
    });
    const at = (started: number | null) => ({ startedAt: () => started });
    expect(await info()).toBe(labels('', ''));
    const ends = [
      metrics.adapters.begin(at(1), named('b')),
      metrics.adapters.begin(at(2), named('a')),
      metrics.adapters.begin(at(3), named('a')),
      metrics.adapters.begin(at(null), named('a')),
      metrics.adapters.begin(at(1), named('wandb-artifact:///default/p/secret', true)),
      metrics.adapters.begin(at(1), { adapter: null, trainable: false, displayName: 'first' }),
    ];
    expect(await info()).toBe(labels('a,b', 'a'));
    expect(await text()).toContain(`vllm:lora_requests_info{${labels('a,b', 'a')}} `);
    for (const end of ends) end();
    expect(await info()).toBe(labels('', ''));
  });

  test.each(['/v1/chat/completions', '/v1/completions'])('an adapter is one of them while %s runs', async (path) => {
    const resolved = { adapter: { version: 'v', directory: '/' }, trainable: false, displayName: 'mine' };
    const models = {
      resolve: () => Promise.resolve(resolved),
      describe: () => Promise.resolve(null),
      list: () => Promise.resolve([]),
    };
    const other = await startTestServer({}, { models });
    try {
      const running = async () =>
        /running_lora_adapters="(.*?)"/.exec(await (await other.call('/metrics')).text())?.[1];
      const seen: (string | undefined)[] = [];
      other.sessions.script = async function* (_, generation) {
        seen.push(await running());
        yield delta({ text: 'a', finish: 'stop' });
        generation.abort();
      };
      await (await other.post(path, { model: 'mine', messages: [], prompt: 'a' })).text();
      expect([...seen, await running()]).toEqual(['mine', '']);
    } finally {
      await other.close();
    }
  });

  test('an adapter is none of them after an answer of several prompts that grew too large', async () => {
    const resolved = { adapter: { version: 'v', directory: '/' }, trainable: false, displayName: 'mine' };
    const models = {
      resolve: () => Promise.resolve(resolved),
      describe: () => Promise.resolve(null),
      list: () => Promise.resolve([]),
    };
    const other = await startTestServer({ maxAnswerBytes: 1000 }, { models });
    try {
      other.sessions.script = async function* (_, generation) {
        yield delta({ text: 'a'.repeat(2000), tokenIds: [1] });
        await generation.untilAborted();
      };
      const response = await other.post('/v1/completions', { model: 'mine', prompt: ['a', 'b', 'c'] });
      expect([response.status, await response.text()]).toEqual([400, expect.stringContaining('--max-answer-size')]);
      const metrics = await (await other.call('/metrics')).text();
      expect(/running_lora_adapters="(.*?)"/.exec(metrics)?.[1]).toBe('');
      expect(metrics).toContain(
        'tandem_request_success_total{model_name="first",engine="0",finished_reason="abort"} 3',
      );
      // None of them has finished.
      expect(metrics).not.toMatch(/^tandem_e2e_request_latency_seconds_count/m);
    } finally {
      await other.close();
    }
  });

  test('no client can add a label', async () => {
    await text();
    // The runtime's own samples grow as its garbage collector shows new kinds.
    const count = async () => (await text()).split('\n').filter((line) => !line.includes('tandem_nodejs')).length;
    const ask = (at: number) => [
      server.call(`/path-${at}`),
      server.post('/v1/chat/completions', { messages: [], model: `model-${at}` }),
      fetch(`${server.url}/v1/models`, { method: 'DELETE', headers: { authorization: `Bearer wrong-${at}` } }),
    ];
    await Promise.all(ask(0));
    const before = await count();
    for (let at = 1; at < 30; at++) await Promise.all(ask(at));
    expect(await count()).toBe(before);
    expect(await text()).not.toMatch(/path-|model-\d|wrong-/);
  });
});

test.each([
  ['/tokenize', { prompt: 'a' }],
  ['/detokenize', { tokens: [1] }],
  ['/v1/load_lora_adapter', { lora_name: 'a', lora_path: '/a' }],
  ['/v1/unload_lora_adapter', { lora_name: 'a' }],
])('%s takes unknown keys and names them in a header', async (path, body) => {
  const plain = await server.post(path, body);
  expect([plain.status, plain.headers.get('x-tandem-ignored-fields')]).toEqual([200, null]);
  const response = await server.post(path, { ...body, lora_int_id: 1, stream_options: { x: 1 } });
  expect([response.status, response.headers.get('x-tandem-ignored-fields')]).toEqual([
    200,
    'lora_int_id, stream_options',
  ]);
});

describe('tokenize', () => {
  const post = (body: object) => ({
    method: 'POST',
    body: JSON.stringify(body),
    headers: { 'content-type': 'application/json' },
  });
  test('text', async () => {
    const answer = await (await server.post('/tokenize', { prompt: 'abc', return_token_strs: true })).json();
    expect(answer).toEqual({ count: 3, max_model_len: 128, tokens: [0, 1, 2], token_strs: ['<0>', '<1>', '<2>'] });
  });
  test.each([true, false])('many tokens are written in pieces (texts: %s)', async (texts) => {
    const response = await server.post('/tokenize', { prompt: 'a'.repeat(30_001), return_token_strs: texts });
    expect([response.headers.get('content-length'), response.headers.get('content-type')]).toEqual([
      null,
      'application/json; charset=utf-8',
    ]);
    const tokens = Array.from({ length: 30_001 }, (_, id) => id);
    expect(await response.json()).toEqual({
      count: 30_001,
      max_model_len: 128,
      tokens,
      token_strs: texts ? tokens.map((id) => `<${id}>`) : null,
    });
  });
  test('messages', async () => {
    const messages = [{ role: 'user', content: 'Hi' }];
    expect(await (await server.post('/tokenize', { messages })).json()).toEqual({
      count: 2,
      max_model_len: 128,
      tokens: [1, 2],
      token_strs: null,
    });
  });
  test('what is for messages does nothing beside a text, and the header says so', async () => {
    const fields = { tools: [{ type: 'function', function: { name: 'f' } }], add_generation_prompt: true };
    const response = await server.post('/tokenize', { prompt: 'a', add_special_tokens: false, ...fields });
    const named = 'tools, add_generation_prompt';
    expect([response.status, response.headers.get('x-tandem-ignored-fields')]).toEqual([200, named]);
  });
  test('documents and reasoning_effort, as in a chat', async () => {
    const fields = { messages: [], documents: [{ title: 'a' }], reasoning_effort: 'none' };
    const response = await server.post('/tokenize', fields);
    expect([response.status, response.headers.get('x-tandem-ignored-fields')]).toEqual([200, null]);
    expect(server.sessions.tokenized.at(-1)).toMatchObject({
      render: {
        documents: [{ title: 'a' }],
        templateKwargs: { reasoning_effort: 'none', enable_thinking: false },
      },
    });
  });
  test.each([
    [{}, 'prompt'],
    [{ prompt: 'a', messages: [] }, 'prompt'],
    [{ prompt: 7 }, 'prompt'],
    [{ prompt: 'a', model: 'other' }, 'model'],
    [{ messages: [], chat_template: 'x' }, 'chat_template'],
    [{ messages: [], documents: 'x' }, 'documents'],
    [{ messages: [], reasoning_effort: 5 }, 'reasoning_effort'],
  ])('%j is refused', async (body, param) => {
    const response = await server.post('/tokenize', body);
    expect(response.status).toBe(param === 'model' ? 404 : 400);
    expect((await errorOf(response)).param).toBe(param);
  });
  test('a client that leaves is not waited for', async () => {
    const own = await startTestServer();
    const client = new AbortController();
    const left = new Promise((resolve) => {
      own.sessions.tokenize = (_prompt, _tenant, signal) => {
        client.abort();
        return new Promise((_, reject) => {
          signal?.addEventListener('abort', () => reject(new Error('left')));
          signal?.addEventListener('abort', resolve);
        });
      };
    });
    await expect(own.call('/tokenize', { ...post({ prompt: 'a' }), signal: client.signal })).rejects.toThrow('abort');
    await left;
    await own.close();
  });
  test('detokenize', async () => {
    expect(await (await server.post('/detokenize', { tokens: [1, 2] })).json()).toEqual({ prompt: '<1><2>' });
    for (const tokens of [[-1], [100], ['a'], 'x', undefined]) {
      expect((await server.post('/detokenize', { tokens })).status, JSON.stringify(tokens)).toBe(400);
    }
    const small = await startTestServer({ maxAnswerBytes: 1000 });
    const refused = await small.post('/detokenize', { tokens: Array<number>(200).fill(1) });
    expect(refused.status).toBe(400);
    expect((await errorOf(refused)).message).toContain('more than 1000 bytes (--max-answer-size)');
    await small.close();
  });
});

describe('text completions', () => {
  test.each([
    [{ prompt: undefined }, 'prompt'],
    [{ prompt: 7 }, 'prompt'],
    [{ prompt: [] }, 'prompt'],
    [{ prompt: [1, 'a'] }, 'prompt'],
    [{ prompt: [1.5] }, 'prompt.0'],
    [{ prompt: [[1], 2] }, 'prompt'],
    [{ prompt: [-1] }, 'prompt'],
    [{ prompt: [[100]] }, 'prompt'],
    [{ prompt: Array.from({ length: 1025 }, () => 'x') }, 'prompt'],
    [{ prompt: Array.from({ length: 17 }, () => 'x'), n: 2 }, 'prompt'],
    [{ suffix: 'x' }, 'suffix'],
    [{ best_of: 2 }, 'best_of'],
    [{ echo: true, logprobs: 21 }, 'logprobs'],
    [{ prompt_logprobs: 1, stream: true }, 'prompt_logprobs'],
    [{ priority: 1 }, 'priority'],
    [{ logprobs: -2 }, 'logprobs'],
    [{ logprobs: 21 }, 'logprobs'],
    [{ logprobs: true }, 'logprobs'],
    [{ max_tokens: 0 }, 'max_tokens'],
    [{ min_tokens: 17 }, 'min_tokens'],
    [{ use_beam_search: 1 }, 'use_beam_search'],
    [{ stream_options: { include_usage: true } }, 'stream_options'],
  ])('%j is refused', async (fields, param) => {
    const before = server.sessions.inputs.length;
    const response = await server.post('/v1/completions', { prompt: 'x', ...fields });
    expect(response.status).toBe(400);
    expect((await errorOf(response)).param).toBe(param);
    expect(server.sessions.inputs.length).toBe(before);
  });
  test('prompts of every kind', async () => {
    const prompts = async (prompt: unknown) => {
      const before = server.sessions.inputs.length;
      expect((await server.post('/v1/completions', { prompt })).status).toBe(200);
      return server.sessions.inputs.slice(before).map((input) => input.prompt);
    };
    const text = (value: string) => ({ kind: 'text', text: value, addSpecialTokens: true });
    expect(await prompts('a')).toEqual([text('a')]);
    expect(await prompts(['a', 'b'])).toEqual([text('a'), text('b')]);
    expect(await prompts([1, 2])).toEqual([{ kind: 'ids', ids: [1, 2] }]);
    expect(await prompts([[1], [2, 3]])).toEqual([
      { kind: 'ids', ids: [1] },
      { kind: 'ids', ids: [2, 3] },
    ]);
  });
  test('max_tokens is 16 where none is given', async () => {
    await server.post('/v1/completions', { prompt: 'a' });
    expect(server.sessions.inputs.at(-1)?.sampling.maxTokens).toBe(16);
  });
});
