/** /v1/models for clients of the Messages API: its form, its pages by Anthropic's client, its errors. */
import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { FirstResolver, BaseModelResolver, type ModelResolver } from '../../../src/control/models/resolver.ts';
import { KEY, startTestServer, type TestServer } from './fakes.ts';

const LISTED = ['a', 'b/c', 'd'].map((name) => ({ name, root: 'r', created: 86_400 }));
const adapters: ModelResolver = {
  resolve: () => Promise.resolve(null),
  describe: (name) => Promise.resolve(LISTED.find((listed) => listed.name === name) ?? null),
  list: () => Promise.resolve(LISTED),
};
const NAMES = ['first', 'second', 'a', 'b/c', 'd'];
const OF_MESSAGES = { 'x-api-key': KEY, 'anthropic-version': '2023-06-01' };

let server: TestServer;
let client: Anthropic;
beforeAll(async () => {
  const models = new FirstResolver([new BaseModelResolver(['first', 'second']), adapters]);
  server = await startTestServer({}, { models });
  client = new Anthropic({ apiKey: KEY, baseURL: server.url, maxRetries: 0 });
});
afterAll(() => server.close());

const ask = (path: string, headers: Record<string, string> = OF_MESSAGES) => fetch(server.url + path, { headers });

test('a model has the fields of that interface, listed or asked for', async () => {
  const shown = (id: string, created_at: string) => {
    return { type: 'model', id, display_name: id, created_at, max_input_tokens: 128, max_tokens: 128 };
  };
  const { data, ...page } = (await (await ask('/v1/models')).json()) as { data: object[] };
  expect(data[0]).toEqual(shown('first', '1970-01-01T00:00:01.000Z'));
  expect(page).toEqual({ has_more: false, first_id: 'first', last_id: 'd' });
  for (const name of ['b/c', 'b%2Fc']) {
    expect(await (await ask(`/v1/models/${name}`)).json()).toEqual(shown('b/c', '1970-01-02T00:00:00.000Z'));
  }
  expect(await client.models.retrieve('b/c')).toEqual(data[3]);
});

test('without the header of the interface the form is that of OpenAI, whatever brings the key', async () => {
  const { 'x-api-key': key } = OF_MESSAGES;
  const answer = await ask('/v1/models', { 'x-api-key': key });
  expect(await answer.json()).toMatchObject({ object: 'list', data: [{ object: 'model' }, {}, {}, {}, {}] });
  expect(answer.headers.get('request-id')).toBeNull();
  expect(await (await ask('/v1/models/a', { 'x-api-key': key })).json()).toMatchObject({ object: 'model', root: 'r' });
});

describe('pages', () => {
  test.each([1, 2, 3, 5, 20])('of %i are gone through from the first to the last', async (limit) => {
    const ids: string[] = [];
    for await (const { id } of client.models.list({ limit })) ids.push(id);
    expect(ids).toEqual(NAMES);
  });

  test('go back from an id, nearest first', async () => {
    const page = await client.models.list({ limit: 2, before_id: 'd' });
    expect([page.data.map(({ id }) => id), page.has_more]).toEqual([['a', 'b/c'], true]);
    const before = await page.getNextPage();
    expect([before.data.map(({ id }) => id), before.has_more]).toEqual([['first', 'second'], false]);
    const none = await client.models.list({ before_id: 'first' });
    expect(none).toMatchObject({ data: [], has_more: false, first_id: null, last_id: null });
  });

  test.each([
    ['limit=0', /^limit/],
    ['limit=1001', /^limit/],
    ['limit=x', /^limit/],
    ['after_id=none', /^after_id/],
    ['before_id=none', /^before_id/],
    ['after_id=a&after_id=d', /^after_id/],
    ['before_id=a&before_id=d', /^before_id/],
    ['after_id=a&before_id=d', /^before_id/],
  ])('%s is refused', async (query, message) => {
    const response = await ask(`/v1/models?${query}`);
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({
      type: 'error',
      error: { type: 'invalid_request_error', message: expect.stringMatching(message) as string },
      request_id: response.headers.get('request-id'),
    });
  });
});

test('errors are those that the client knows', async () => {
  await expect(client.models.retrieve('none')).rejects.toBeInstanceOf(Anthropic.NotFoundError);
  const stranger = new Anthropic({ apiKey: 'nobody', baseURL: server.url, maxRetries: 0 });
  await expect(stranger.models.list()).rejects.toBeInstanceOf(Anthropic.AuthenticationError);
  const other = await server.call('/v1/models', { method: 'DELETE', headers: OF_MESSAGES });
  expect([other.status, await other.json()]).toMatchObject([405, { type: 'error' }]);
});
