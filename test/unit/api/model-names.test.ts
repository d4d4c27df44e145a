/** Names of adapters and trained models in requests: who may use them, and what is returned for them by default. */
import { afterEach, beforeEach, expect, test } from 'vitest';
import {
  BaseModelResolver,
  FirstResolver,
  type ModelResolver,
  type ResolvedModel,
} from '../../../src/control/models/resolver.ts';
import { delta, errorOf, events, startTestServer, type TestServer } from './fakes.ts';

const ADAPTER = { version: 'v1', directory: '/adapters/a' };

const LISTED = (name: string) => ({ name, root: '/adapters/a', created: 5 });

/** `mine` belongs to the test key's entity, `theirs` to another; both are trained. */
const trained: ModelResolver = {
  resolve: (name, entity) => {
    const found: ResolvedModel = { adapter: ADAPTER, trainable: true, displayName: name };
    if (name === 'large') return Promise.resolve({ ...found, obstacle: 'Its rank is too much.' });
    if (name === 'plain') return Promise.resolve({ ...found, trainable: false });
    return Promise.resolve(name === 'mine' && entity === 'default' ? found : null);
  },
  describe: (name, entity) => {
    const known = ['mine', 'mine:step1', 'wandb-artifact:///a/b c/d'].includes(name) && entity === 'default';
    return Promise.resolve(known ? LISTED(name) : null);
  },
  list: (entity) => Promise.resolve(entity === 'default' ? [LISTED('mine'), LISTED('wandb-artifact:///a/b c/d')] : []),
};

let server: TestServer;
beforeEach(async () => {
  const models = new FirstResolver([new BaseModelResolver(['first', 'second']), trained]);
  server = await startTestServer({}, { models });
});
afterEach(() => server.close());

const chat = (model: unknown, more: object = {}) =>
  server.post('/v1/chat/completions', { model, messages: [{ role: 'user', content: 'Hi' }], ...more });

interface Reply {
  model: string;
  choices: {
    logprobs: { content: { token: string }[] } | { tokens: string[] } | null;
    token_ids: number[] | null;
  }[];
  prompt_token_ids: number[] | null;
}

test('an adapter name reaches the engine and is the name in the answer', async () => {
  const reply = (await (await chat('plain')).json()) as Reply;
  expect(reply.model).toBe('plain');
  expect(server.sessions.inputs[0]?.adapter).toEqual(ADAPTER);
  expect(server.sessions.inputs[0]?.modelDefaults).toBe(true);
  expect(reply.choices[0]?.logprobs).toBeNull();
  expect(reply.choices[0]?.token_ids).toBeNull();
});

test.each([
  ['/v1/chat/completions', { messages: [{ role: 'user', content: 'Hi' }] }],
  ['/v1/completions', { prompt: 'Hi' }],
  ['/v1/responses', { input: 'Hi' }],
  ['/v1/messages', { messages: [{ role: 'user', content: 'Hi' }], max_tokens: 1 }],
  ['/tokenize', { prompt: 'Hi' }],
])('%s: a model that cannot be served with these settings is refused, and why is said', async (path, body) => {
  const response = await server.post(path, { model: 'large', ...body });
  expect([response.status, await response.text()]).toEqual([400, expect.stringContaining('Its rank is too much.')]);
  expect(server.sessions.inputs).toEqual([]);
});

test.each(['', null, undefined, 'second'])('%j is the base model', async (name) => {
  const reply = (await (await chat(name)).json()) as Reply;
  expect(reply.model).toBe('first');
  expect(server.sessions.inputs[0]?.adapter).toBeNull();
});

test.each(['theirs', 'nobody', 'mine '])('%j is 404', async (name) => {
  const response = await chat(name);
  expect(response.status).toBe(404);
  const error = await errorOf(response);
  expect(error).toMatchObject({ type: 'NotFoundError', param: 'model' });
  expect(error.message).toBe(`The model \`${name}\` does not exist.`);
  expect(server.sessions.inputs).toEqual([]);
});

test('what is wrong with the body comes before an unknown name, how to sample from it after', async () => {
  const first = [{ n: 'x' }, { top_logprobs: 3 }, { tools: [] }, { tool_choice: 'auto' }, { cache_salt: '' }];
  const both = { continue_final_message: true, add_generation_prompt: true };
  for (const fields of [...first, both, { structured_outputs: { choice: [] } }])
    expect((await chat('nobody', fields)).status, JSON.stringify(fields)).toBe(400);
  expect((await chat(7)).status).toBe(400);
  const after = [{ temperature: -1 }, { n: 0 }, { max_completion_tokens: 0 }, { stop: [''] }, { logit_bias: { x: 1 } }];
  for (const fields of [...after, { logprobs: true, top_logprobs: 99 }, { chat_template: 'x' }])
    expect((await errorOf(await chat('nobody', fields))).param, JSON.stringify(fields)).toBe('model');
  const text = await server.post('/v1/completions', { model: 'nobody', prompt: 'x', top_p: 2 });
  expect((await errorOf(text)).param).toBe('model');
});

test('of several faults the shape is told first, then rules between fields, the name, the template, how to sample', async () => {
  const cold = { temperature: -1, stop: [''] };
  const param = async (name: string, fields: object) => (await errorOf(await chat(name, { ...cold, ...fields }))).param;
  expect(await param('nobody', { tools: 5, top_logprobs: 3, chat_template: 'x' })).toBe('tools');
  expect(await param('nobody', { stop_token_ids: ['x'], top_logprobs: 3 })).toBe('stop_token_ids.0');
  expect(await param('nobody', { top_logprobs: 3, chat_template: 'x' })).toBe('top_logprobs');
  expect(await param('nobody', { chat_template: 'x' })).toBe('model');
  expect(await param('plain', { chat_template: 'x' })).toBe('chat_template');
  expect(await param('plain', {})).toBe('temperature');
  const text = { model: 'nobody', prompt: 'x', top_p: 2, stream_options: { include_usage: true } };
  expect((await errorOf(await server.post('/v1/completions', text))).param).toBe('stream_options');
});

test('a trained model returns logprobs and ids unless told not to', async () => {
  const reply = (await (await chat('mine')).json()) as Reply;
  expect(reply.choices[0]?.token_ids).toEqual([10, 11, 2]);
  expect(reply.prompt_token_ids).toEqual([5, 6, 7]);
  const content = (reply.choices[0]?.logprobs as { content: { token: string; top_logprobs: unknown[] }[] }).content;
  expect(content.map(({ token }) => token)).toEqual(['token_id:10', 'token_id:11', 'token_id:2']);
  expect(content.every((entry) => entry.top_logprobs.length === 0)).toBe(true);
  // The client trains on the distribution it sampled from: no defaults of the model's files.
  expect(server.sessions.inputs[0]?.modelDefaults).toBe(false);
  const bare = (await (
    await chat('mine', { logprobs: false, return_token_ids: false, return_tokens_as_token_ids: false })
  ).json()) as Reply;
  expect(bare.choices[0]).toMatchObject({ logprobs: null, token_ids: null });
});

test('streams and text completions of a trained model carry them too', async () => {
  const chunks = events(await (await chat('mine', { stream: true })).text()) as Reply[];
  const ids = chunks.flatMap((chunk) => (typeof chunk === 'object' ? (chunk.choices[0]?.token_ids ?? []) : []));
  expect(ids).toEqual([10, 11, 2]);
  const text = (await (await server.post('/v1/completions', { model: 'mine', prompt: 'x' })).json()) as Reply;
  expect((text.choices[0]?.logprobs as { tokens: string[] }).tokens).toEqual([
    'token_id:10',
    'token_id:11',
    'token_id:2',
  ]);
  expect(text.choices[0]?.token_ids).toEqual([10, 11, 2]);
});

test('what a trained model said is remembered, but not where part of it was hidden', async () => {
  const reply = (index: number) => {
    const logprobs = [{ token: 'a', logprob: -1, bytes: [97], tokenId: 7, top: [], chars: 1, at: 0 }];
    return delta({ index, text: 'a', tokenIds: [7], logprobs, finish: 'stop' });
  };
  server.sessions.script = () => [delta({ index: 1, tokens: 2, reasoningTokens: 2 }), reply(0), reply(1)];
  const { id } = (await (await chat('mine', { n: 2, include_reasoning: false })).json()) as Reply & { id: string };
  const [whole, part] = server.deps.samples.find(id, 'default') ?? [];
  expect(Array.from(whole?.tokenIds ?? [])).toEqual([7]);
  expect(part).toBeNull();
});

test('the list shows adapters with their parent', async () => {
  const list = (await (await server.call('/v1/models')).json()) as { data: { id: string; parent: string | null }[] };
  expect(list.data.map(({ id, parent }) => [id, parent])).toEqual([
    ['first', null],
    ['second', null],
    ['mine', 'first'],
    ['wandb-artifact:///a/b c/d', 'first'],
  ]);
});

test('one model, by any name of it', async () => {
  const { data } = (await (await server.call('/v1/models')).json()) as { data: { id: string }[] };
  for (const card of data) {
    for (const name of [encodeURIComponent(card.id), card.id])
      expect(await (await server.call(`/v1/models/${name}`)).json()).toEqual(card);
  }
  const step = await (await server.call('/v1/models/mine:step1')).json();
  expect(step).toMatchObject({ id: 'mine:step1', root: '/adapters/a', parent: 'first', created: 5 });
  for (const name of ['theirs', 'nobody', 'first/', '%', 'a%2Fb', 'a/b']) {
    const error = await errorOf(await server.call(`/v1/models/${name}`));
    expect(error).toMatchObject({ type: 'NotFoundError', param: 'model', code: 404 });
  }
  expect((await server.call('/v1/models/')).status).toBe(404);
  expect((await server.call('/v1/models/first', { method: 'DELETE' })).status).toBe(405);
});
