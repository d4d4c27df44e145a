/** A server whose engine trains nothing: the training endpoints read, and refuse to write by name. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { PREVIEW_ROUTES } from '../../../src/api/routes/preview/routes.ts';
import { startTestServer, type TestServer } from './fakes.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ allowRuntimeLoraUpdating: true }, { trains: false, adapters: null });
});
afterAll(() => server.close());

const writing = PREVIEW_ROUTES.filter(({ method }) => method !== 'GET').map(({ method, path }) => ({
  method,
  path: path.replace(/:\w+/g, 'a-name'),
}));

test.each(writing)('$method $path is refused', async ({ method, path }) => {
  const response = await server.call(path, { method, body: method === 'DELETE' ? null : '{}' });
  expect(response.status).toBe(400);
  const { error } = (await response.json()) as { error: { message: string; type: string } };
  expect(error.type).toBe('BadRequestError');
  expect(error.message).toContain('llama.cpp');
});

test('nothing is a base for training', async () => {
  const response = await server.call('/v1/preview/base-models');
  expect(response.status).toBe(200);
  expect(await response.json()).toMatchObject({ data: [] });
});

test('wrong methods and paths are told as ever, and adapters over HTTP are unknown', async () => {
  expect((await server.post('/v1/preview/base-models', {})).status).toBe(405);
  expect((await server.post('/v1/preview/nothing', {})).status).toBe(404);
  expect((await server.post('/v1/load_lora_adapter', { lora_name: 'a', lora_path: 'b' })).status).toBe(404);
});
