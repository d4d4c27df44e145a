/** Models and checkpoints under /v1/preview, as the clients' wire format has them. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readPeftConfig } from '../../src/control/models/peft-config.ts';
import { ApiServer } from './server.ts';
import { createEntityKey, json, UUID } from './preview.ts';

let dataDir: string;
let server: ApiServer;
let other: string;
beforeAll(async () => {
  dataDir = mkdtempSync(join(tmpdir(), 'tandem-preview-'));
  other = await createEntityKey(dataDir, 'rivals');
  server = await ApiServer.start({ dataDir, flags: ['--served-model-name', 'Qwen/Qwen3-0.6B,alias'] });
}, 120_000);
afterAll(async () => {
  await server?.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

const MODELS = '/v1/preview/models';
const as = (key: string) => ({ headers: { authorization: `Bearer ${key}` } });
// As the client sends it.
const body = (name: string, more: object = {}) => ({
  entity: null,
  project: 'p',
  name,
  base_model: 'Qwen/Qwen3-0.6B',
  return_existing: true,
  ...more,
});

interface Model {
  id: string;
  run_id: string;
}

async function create(name: string, more: object = {}): Promise<Model> {
  const response = await server.post(MODELS, body(name, more));
  expect(response.status).toBe(200);
  return (await response.json()) as Model;
}

describe('create', () => {
  test('answers 200 with the record, and the same one again', async () => {
    const model = await create('agent');
    expect(model).toEqual({
      id: expect.stringMatching(UUID) as string,
      entity: 'default',
      project: 'p',
      name: 'agent',
      base_model: 'Qwen/Qwen3-0.6B',
      run_id: expect.any(String) as string,
    });
    expect(await create('agent')).toEqual(model);
    expect(await create('agent', { entity: 'default' })).toEqual(model);
  });

  test('twenty at once make one', async () => {
    const ids = await Promise.all(Array.from({ length: 20 }, async () => (await create('crowd')).id));
    expect(new Set(ids).size).toBe(1);
  });

  test('without return_existing a second one is 409', async () => {
    await create('once');
    const { return_existing: _, ...rest } = body('once');
    const response = await server.post(MODELS, rest);
    expect(response.status).toBe(409);
    expect(await response.json()).toMatchObject({ error: { type: 'ConflictError', param: 'name' } });
  });

  test.each([
    [{ project: undefined }, ['body', 'project'], 'missing'],
    [{ name: undefined }, ['body', 'name'], 'missing'],
    [{ base_model: undefined }, ['body', 'base_model'], 'missing'],
    [{ name: 7 }, ['body', 'name'], 'string_type'],
    [{ name: '' }, ['body', 'name'], 'string_too_short'],
    [{ name: 'a/b' }, ['body', 'name'], 'string_pattern_mismatch'],
    [{ name: 'a:step1' }, ['body', 'name'], 'string_pattern_mismatch'],
    [{ name: '..' }, ['body', 'name'], 'string_pattern_mismatch'],
    [{ name: 'x'.repeat(129) }, ['body', 'name'], 'string_too_long'],
    [{ project: '../../etc' }, ['body', 'project'], 'string_pattern_mismatch'],
    [{ project: 'a\nb' }, ['body', 'project'], 'string_pattern_mismatch'],
    [{ return_existing: 'yes' }, ['body', 'return_existing'], 'bool_type'],
    [{ base_model: '../../etc/passwd' }, ['body', 'base_model'], 'value_error'],
    [{ base_model: '/etc/passwd' }, ['body', 'base_model'], 'value_error'],
    [{ base_model: '../Qwen3-0.6B' }, ['body', 'base_model'], 'value_error'],
    [{ base_model: 'Qwen/Qwen3-1.7B' }, ['body', 'base_model'], 'value_error'],
    [{ lora_rank: 4 }, ['body', 'lora_rank'], 'extra_forbidden'],
    [{ base_model: '__proto__' }, ['body', 'base_model'], 'value_error'],
  ])('%j is 422 at %j', async (more, loc, type) => {
    const response = await server.post(MODELS, body('bad', more));
    expect(response.status).toBe(422);
    expect(await response.json()).toEqual({ detail: [{ loc, msg: expect.any(String) as string, type }] });
  });

  test.each(['{', '[]', '"x"', 'null', ''])('the body %j is 422', async (text) => {
    const response = await server.call(MODELS, {
      method: 'POST',
      body: text,
      headers: { 'content-type': 'application/json' },
    });
    expect(response.status).toBe(422);
    expect(await response.json()).toMatchObject({ detail: [{ loc: ['body'] }] });
  });

  test('for another entity is 403, whether it exists or not', async () => {
    const answers = ['rivals', 'nobody'].map(async (entity) => {
      const response = await server.post(MODELS, body('theirs', { entity }));
      return [response.status, await response.text()];
    });
    const [first, second] = await Promise.all(answers);
    expect(first?.[0]).toBe(403);
    expect(first).toEqual(second);
  });
});

describe('checkpoints', () => {
  test('step 0 is there at once', async () => {
    const { id } = await create('fresh');
    const page = await json(server, `${MODELS}/${id}/checkpoints?limit=1&order=desc`);
    expect(page).toEqual({
      object: 'list',
      data: [{ id: expect.stringMatching(UUID) as string, step: 0, metrics: {} }],
      first_id: expect.any(String) as string,
      last_id: expect.any(String) as string,
      has_more: false,
    });
    const [item] = page.data as { id: string }[];
    expect([page.first_id, page.last_id]).toEqual([item?.id, item?.id]);
    expect(await json(server, `${MODELS}/${id}/checkpoints?after=${item?.id}`)).toMatchObject({
      data: [],
      has_more: false,
      first_id: '',
      last_id: '',
    });
  });

  test.each([
    ['limit=0', 'limit', 'greater_than_equal'],
    ['limit=101', 'limit', 'less_than_equal'],
    ['limit=ten', 'limit', 'int_parsing'],
    ['limit=1e1', 'limit', 'int_parsing'],
    ['order=up', 'order', 'literal_error'],
    ['after=nonsense', 'after', 'value_error'],
  ])('?%s is 422', async (query, field, type) => {
    const { id } = await create('fresh');
    const response = await server.call(`${MODELS}/${id}/checkpoints?${query}`);
    expect(response.status).toBe(422);
    expect(await response.json()).toMatchObject({ detail: [{ loc: ['query', field], type }] });
  });

  test('hand out their adapter, as PEFT has it', async () => {
    const { id } = await create('taken-home');
    const path = (step: string, file: string) => `${MODELS}/${id}/checkpoints/${step}/files/${file}`;
    const files = ['adapter_config.json', 'adapter_model.safetensors'];
    const folder = mkdtempSync(join(tmpdir(), 'tandem-adapter-'));
    for (const file of files) {
      const response = await server.call(path('0', file));
      expect(response.status).toBe(200);
      expect(response.headers.get('content-disposition')).toBe('attachment');
      const bytes = Buffer.from(await response.arrayBuffer());
      expect(Number(response.headers.get('content-length'))).toBe(bytes.length);
      writeFileSync(join(folder, file), bytes);
    }
    await expect(readPeftConfig(folder, 8)).resolves.toBeTruthy();
    const tensors = readFileSync(join(folder, files[1] ?? ''));
    expect(tensors.subarray(8, 8 + Number(tensors.readBigUInt64LE(0))).toString()).toContain('q_proj.lora_A.weight');
    for (const [step, file] of [
      ['1', files[0]],
      ['-0', files[0]],
      ['latest', files[0]],
      ['0', 'optimizer.safetensors'],
      ['0', '..%2Fadapter_config.json'],
    ] as const) {
      const response = await server.call(path(step, file ?? ''));
      expect([response.status, await response.json()]).toMatchObject([404, { error: { type: 'NotFoundError' } }]);
    }
    rmSync(folder, { recursive: true });
  });

  test('are deleted by step; what was not there is named', async () => {
    const { id } = await create('pruned');
    const path = `${MODELS}/${id}/checkpoints`;
    const remove = async (steps: unknown) => {
      const headers = { 'content-type': 'application/json' };
      const response = await server.call(path, { method: 'DELETE', body: JSON.stringify({ steps }), headers });
      return [response.status, await response.json()] as const;
    };
    expect(await remove([7])).toEqual([200, { deleted_count: 0, not_found_steps: [7] }]);
    expect(await remove([0, 7, 0])).toEqual([200, { deleted_count: 1, not_found_steps: [7] }]);
    expect(await remove([0])).toEqual([200, { deleted_count: 0, not_found_steps: [0] }]);
    expect(await remove([])).toEqual([200, { deleted_count: 0, not_found_steps: [] }]);
    expect(await json(server, path)).toMatchObject({ data: [] });
    expect(await remove([2 ** 60])).toMatchObject([422, { detail: [{ msg: expect.stringContaining('is at most') }] }]);
    for (const bad of [
      [-1],
      [1.5],
      ['a'],
      [1e300],
      'x',
      null,
      undefined,
      Array.from({ length: 10_001 }, (_, i) => i),
    ]) {
      expect((await remove(bad))[0], JSON.stringify(bad)?.slice(0, 40)).toBe(422);
    }
  });
});

describe('delete', () => {
  test('takes the model, and a repeated one is answered alike', async () => {
    const { id } = await create('gone');
    const remove = () =>
      server.call(`${MODELS}/${id}`, { method: 'DELETE', headers: { 'content-type': 'application/json' } });
    const answer = { model_id: id, deleted_checkpoints: 1, deleted_run: true };
    expect(await (await remove()).json()).toEqual(answer);
    const again = await remove();
    expect([again.status, await again.json()]).toEqual([200, answer]);
    expect((await server.call(`${MODELS}/${id}/checkpoints`)).status).toBe(404);
    expect((await create('gone')).id).not.toBe(id);
  });
});

describe('of another entity', () => {
  test('a model is as unknown as one that never was', async () => {
    const { id } = await create('secret');
    const never = '00000000-0000-4000-8000-000000000000';
    const calls: [string, RequestInit][] = [
      ['/checkpoints', {}],
      ['/checkpoints', { method: 'DELETE', body: '{"steps":[0]}' }],
      ['/checkpoints/0/files/adapter_config.json', {}],
      ['', { method: 'DELETE' }],
    ];
    for (const [path, init] of calls) {
      const headers = { ...as(other).headers, 'content-type': 'application/json' };
      const answers = [id, never].map(async (target) => {
        const response = await server.call(`${MODELS}/${target}${path}`, { ...init, headers });
        return [response.status, await response.text()];
      });
      const [theirs, none] = await Promise.all(answers);
      expect(theirs?.[0], path).toBe(404);
      expect(theirs).toEqual(none);
    }
    expect(await json(server, `${MODELS}/${id}/checkpoints`)).toMatchObject({ data: [{ step: 0 }] });
    // The same name is free for others.
    const theirs = await server.post(MODELS, body('secret', { entity: null }), as(other));
    expect(await theirs.json()).toMatchObject({ entity: 'rivals', name: 'secret' });
  });
});

test('files of a model that are gone from the disk are a fault of the server, which the log explains', async () => {
  const adapters = join(dataDir, 'blobs', 'adapters');
  const before = new Set(readdirSync(adapters));
  const { id } = await create('lost');
  const folder = readdirSync(adapters).find((name) => !before.has(name)) ?? '';
  const weights = join(adapters, folder, 'adapter_model.safetensors');
  const bytes = readFileSync(weights);
  rmSync(weights);
  const chat = { model: 'default/p/lost', messages: [{ role: 'user', content: 'x' }], max_completion_tokens: 1 };
  const file = await server.call(`${MODELS}/${id}/checkpoints/0/files/adapter_model.safetensors`);
  for (const [response, told, logged] of [
    [await server.post('/v1/chat/completions', chat), "cannot load this model's adapter", `${folder} cannot be loaded`],
    [file, "The file is missing in the server's storage.", 'safetensors: is missing'],
  ] as const) {
    const { error } = (await response.json()) as { error: { message: string } };
    expect(error).toMatchObject({ type: 'InternalServerError', code: 500, param: null });
    expect([error.message.includes(told), error.message.includes(folder)]).toEqual([true, false]);
    await expect.poll(() => server.log).toContain(logged);
  }
  // A bit of the last number is another.
  writeFileSync(weights, Buffer.concat([bytes.subarray(0, -1), Buffer.from([(bytes.at(-1) ?? 0) ^ 1])]));
  for (const name of ['adapter_config.json', 'adapter_model.safetensors']) {
    const damaged = await server.call(`${MODELS}/${id}/checkpoints/0/files/${name}`);
    expect([damaged.status, await damaged.text()]).toEqual([500, expect.stringContaining('The file is damaged')]);
  }
  writeFileSync(weights, bytes);
  const config = await server.call(`${MODELS}/${id}/checkpoints/0/files/adapter_config.json`);
  expect([config.status, ((await config.json()) as { r: number }).r]).toEqual([200, 8]);
});

test('base models and the system check', async () => {
  expect(await json(server, '/v1/preview/base-models')).toMatchObject({
    data: [{ id: 'Qwen/Qwen3-0.6B' }, { id: 'alias' }],
    has_more: false,
  });
  expect(await json(server, '/v1/system-check')).toMatchObject({ status: 'ok' });
  expect((await fetch(`${server.url}/v1/system-check`)).status).toBe(401);
});

test('a method that a path does not have is 405', async () => {
  const response = await server.call(`${MODELS}/x/checkpoints`, { method: 'PUT' });
  expect([response.status, response.headers.get('allow')]).toEqual([405, 'GET, DELETE']);
  expect((await server.call(MODELS)).status).toBe(405);
  expect((await server.call(`${MODELS}/x/y/z`)).status).toBe(404);
});

describe('chat by the names of clients', () => {
  const CHAT = '/v1/chat/completions';
  const messages = [{ role: 'user', content: 'Hello' }];
  const chat = (model: string | undefined, key = server.key) =>
    server.post(CHAT, { model, messages, max_completion_tokens: 4, seed: 1 }, as(key));
  interface Answer {
    id: string;
    model: string;
    choices: { token_ids?: number[]; logprobs: { content: { token: string; logprob: number }[] } | null }[];
  }

  test('every spelling of a step is the same model, and step 0 says what the base model says', async () => {
    await create('speaker');
    const base = (await (
      await server.post(CHAT, { messages, max_completion_tokens: 4, seed: 1, return_token_ids: true })
    ).json()) as Answer;
    for (const prefix of ['wandb-artifact:///', 'wandb-artifact://', '']) {
      for (const suffix of ['', ':latest', ':step0', ':v0']) {
        const name = `${prefix}default/p/speaker${suffix}`;
        const response = await chat(name);
        expect(response.status, name).toBe(200);
        const answer = (await response.json()) as Answer;
        expect(answer.model).toBe(name);
        const [choice] = answer.choices;
        // Ids and log-probabilities of a trainable model come unasked.
        expect(choice?.token_ids).toEqual(base.choices[0]?.token_ids);
        expect(choice?.logprobs?.content.map(({ token }) => token)).toEqual(
          choice?.token_ids?.map((id) => `token_id:${id}`),
        );
      }
    }
  }, 60_000);

  test('what is not there, deleted, or of others is one 404', async () => {
    const { id } = await create('hidden');
    const answers = [];
    for (const [name, key] of [
      ['default/p/hidden:step1', server.key],
      ['default/p/never', server.key],
      ['default/p/hidden', other],
      ['default/p/hidden:step0', other],
    ] as const) {
      const response = await chat(name, key);
      answers.push([response.status, (await response.text()).replaceAll(name, 'NAME')]);
    }
    expect(answers[0]?.[0]).toBe(404);
    for (const answer of answers) expect(answer).toEqual(answers[0]);
    const headers = { 'content-type': 'application/json' };
    await server.call(`${MODELS}/${id}/checkpoints`, { method: 'DELETE', body: '{"steps":[0]}', headers });
    expect((await chat('default/p/hidden:step0')).status).toBe(404);
    expect((await chat('default/p/hidden')).status).toBe(404);
  });

  test('GET /v1/models lists the caller’s, and shows one by any name', async () => {
    await create('listed');
    const ids = async (key: string) => {
      const list = (await (await server.call('/v1/models', as(key))).json()) as {
        data: { id: string; parent: unknown }[];
      };
      return list.data.map(({ id }) => id);
    };
    expect(await ids(server.key)).toContain('wandb-artifact:///default/p/listed');
    expect(await ids(other)).not.toContain('wandb-artifact:///default/p/listed');
    const one = (name: string, key = server.key) => server.call(`/v1/models/${encodeURIComponent(name)}`, as(key));
    const listed = (await (await one('wandb-artifact:///default/p/listed')).json()) as object;
    for (const end of ['', ':step0', ':v0', ':latest']) {
      const names = ['wandb-artifact:///', 'wandb-artifact://', ''].map((begin) => `${begin}default/p/listed${end}`);
      for (const id of names) expect(await (await one(id)).json()).toMatchObject({ ...listed, id, permission: [{}] });
      for (const id of names) expect((await one(id, other)).status).toBe(404);
    }
    expect((await one('default/p/listed:step1')).status).toBe(404);
  });

  test('a trajectory may name a completion, for as long as it is remembered', async () => {
    const { id: modelId } = await create('remembered');
    const { id } = (await (await chat('default/p/remembered')).json()) as Answer;
    const trajectory = (requestId: string) => ({
      messages_and_choices: [
        ...messages,
        { finish_reason: 'length', index: 0, message: { role: 'assistant', content: 'x' }, request_id: requestId },
      ],
      reward: 1,
    });
    const log = (requestId: string, key = server.key) =>
      server.post(
        `${MODELS}/${modelId}/log`,
        { split: 'train', trajectory_groups: [{ trajectories: [trajectory(requestId)] }] },
        as(key),
      );
    const logged = (await (await log(id)).json()) as { id: string };
    const back = await json(server, `${MODELS}/${modelId}/log/${logged.id}`);
    const [group] = back['trajectory_groups'] as {
      trajectories: { messages_and_choices: { token_ids?: number[] }[] }[];
    }[];
    expect(group?.trajectories[0]?.messages_and_choices[1]?.token_ids).toHaveLength(4);
    const train = (requestId: string) =>
      server.post('/v1/preview/training-jobs', {
        model_id: modelId,
        trajectory_groups: [{ trajectories: [trajectory(requestId)] }],
      });
    // By its id, or by the request_id that it was asked with.
    expect((await train(id)).status).toBe(200);
    expect((await train(id.replace('chatcmpl-', ''))).status).toBe(200);
    expect((await train('chatcmpl-never')).status).toBe(422);
  });

  test.each([false, true])('text completions too, each choice with its own prompt (stream %s)', async (stream) => {
    const { id: modelId } = await create('texts');
    const request_id = `texts-${stream}`;
    const body = { model: 'default/p/texts', prompt: ['Once', 'There was a'], n: 2, max_tokens: 4, request_id, stream };
    await (await server.post('/v1/completions', body)).text();
    const choice = (index: number) => ({
      finish_reason: 'length',
      index,
      message: { content: 'x' },
      request_id: `cmpl-${request_id}`,
    });
    const trajectories = [0, 1, 2, 3].map((index) => ({ messages_and_choices: [choice(index)], reward: index }));
    const groups = [{ trajectories }];
    const logged = await json(server, `${MODELS}/${modelId}/log`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ split: 'train', trajectory_groups: groups }),
    });
    const back = await json(server, `${MODELS}/${modelId}/log/${String(logged['id'])}`);
    type Filled = { messages_and_choices: { prompt_token_ids: number[]; token_ids: number[] }[] };
    const [{ trajectories: filled } = { trajectories: [] }] = back['trajectory_groups'] as { trajectories: Filled[] }[];
    const prompts = filled.map(({ messages_and_choices: [reply] }) => reply?.prompt_token_ids.length);
    expect(prompts).toEqual([prompts[0], prompts[0], prompts[2], prompts[2]]);
    expect(prompts[2]).toBeGreaterThan(prompts[0] ?? 0);
    const job = { model_id: modelId, trajectory_groups: groups };
    expect((await server.post('/v1/preview/training-jobs', job)).status).toBe(200);
  });
});
