/** Adapters through HTTP: named at start and while the server runs, used by requests, replaced, removed, and there again after a crash. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ModelSpec } from '../../src/control/engine/native.ts';
import { loadModel } from '../../src/control/models/load.ts';
import { writeAdapter } from '../fixtures/adapters.ts';
import { temporaryDirectory } from '../fixtures/tiny-model.ts';
import { ApiServer, waitFor } from './server.ts';
import { STARTER } from '../fixtures/starter.ts';

const temporary = temporaryDirectory();
const folder = (name: string) => join(temporary.path, name);
let spec: ModelSpec;
let server: ApiServer;

beforeAll(async () => {
  ({ spec } = await loadModel(STARTER));
  writeAdapter(folder('one'), spec, { seed: 'one', config: { base_model_name_or_path: 'models/starter' } });
  writeAdapter(folder('two'), spec, { seed: 'two', rank: 16, dtype: 'BF16', modules: ['q', 'up'] });
  writeAdapter(folder('same'), spec, { seed: 'same', identity: true });
  const flags = ['--lora-modules', `one=${folder('one')}`, '--lora-modules', `same=${folder('same')}`];
  server = await ApiServer.start({ flags: [...flags, '--allow-runtime-lora-updating'] });
}, 120_000);
afterAll(async () => {
  await server?.stop();
  temporary.remove();
});

interface Reply {
  model: string;
  choices: { message: { content: string }; logprobs: { content: { token: string; logprob: number }[] } }[];
}

async function ask(model: string): Promise<{ model: string; said: string }> {
  const body = { model, messages: [{ role: 'user', content: 'Hello! What can you do?' }] };
  const response = await server.post('/v1/chat/completions', { ...body, max_tokens: 12, seed: 1, logprobs: true });
  expect(response.status).toBe(200);
  const reply = (await response.json()) as Reply;
  return { model: reply.model, said: JSON.stringify(reply.choices[0]?.logprobs.content) };
}

async function load(name: string, path: string, more: object = {}) {
  const response = await server.post('/v1/load_lora_adapter', { lora_name: name, lora_path: path, ...more });
  return { status: response.status, text: await response.text() };
}

async function listed(): Promise<[string, string | null][]> {
  const list = (await (await server.call('/v1/models')).json()) as { data: { id: string; parent: string | null }[] };
  return list.data.map(({ id, parent }) => [id, parent]);
}

test('adapters named at start serve under their names', async () => {
  expect(await listed()).toEqual([
    ['starter', null],
    ['one', 'starter'],
    ['same', 'starter'],
  ]);
  const base = await ask('starter');
  const one = await ask('one');
  expect(one.model).toBe('one');
  expect(one.said).not.toBe(base.said);
  // B = 0: the base model to the bit.
  expect((await ask('same')).said).toBe(base.said);
  expect((await server.post('/v1/chat/completions', { model: 'two', messages: [] })).status).toBe(404);
});

test('adapters come, are replaced and go while the server runs', async () => {
  expect(await load('two', folder('two'))).toEqual({
    status: 200,
    text: "Success: LoRA adapter 'two' added successfully.",
  });
  const two = await ask('two');
  expect((await load('two', folder('one'))).status).toBe(400);
  expect((await load('two', folder('one'), { load_inplace: true })).status).toBe(200);
  expect((await ask('two')).said).toBe((await ask('one')).said);
  expect((await ask('two')).said).not.toBe(two.said);
  const gone = await server.post('/v1/unload_lora_adapter', { lora_name: 'two' });
  expect(await gone.text()).toBe("Success: LoRA adapter 'two' removed successfully.");
  expect((await server.post('/v1/unload_lora_adapter', { lora_name: 'two' })).status).toBe(404);
  const after = await server.post('/v1/chat/completions', { model: 'two', messages: [{ role: 'user', content: 'x' }] });
  expect(after.status).toBe(404);
  expect((await listed()).map(([name]) => name)).toEqual(['starter', 'one', 'same']);
});

test('what cannot be loaded is refused with its reason', async () => {
  writeAdapter(folder('nan'), spec, {
    seed: 'nan',
    edit: (tensors) => {
      tensors[5]!.values[3] = NaN;
      return tensors;
    },
  });
  const nan = await load('nan', folder('nan'));
  expect(nan.status).toBe(400);
  expect(nan.text).toContain('layers.0.self_attn.v_proj: lora_B holds a number that is not finite');
  writeAdapter(folder('other'), spec, { seed: 'o', config: { base_model_name_or_path: 'somebody/else' } });
  expect((await load('other', folder('other'))).text).toContain('base_model_name_or_path');
  expect((await load('none', folder('nowhere'))).status).toBe(404);
  for (const name of ['adapter_config.json', 'adapter_model.safetensors']) {
    writeAdapter(folder('half'), spec, { seed: 'half' });
    rmSync(join(folder('half'), name));
    const half = await load('half', folder('half'));
    expect(half.status).toBe(404);
    expect(half.text).toContain(`${name}: is missing.`);
  }
  expect((await load('', folder('one'))).text).toContain('InvalidUserInput');
  expect((await load('starter', folder('one'))).status).toBe(400);
  expect((await listed()).length).toBe(3);
});

test('a load whose client leaves while it waits for memory holds back nobody, and nothing has its name', async () => {
  writeAdapter(folder('large'), spec, { seed: 'large', rank: 10 });
  // Room for one adapter.
  const small = await ApiServer.start({
    flags: [
      '--max-adapter-memory',
      '1M',
      '--lora-modules',
      `large=${folder('large')}`,
      '--allow-runtime-lora-updating',
    ],
    env: { TANDEM_FAULTS: 'slow-steps-ms=20' },
  });
  try {
    const chat = (more: object) =>
      small.post('/v1/chat/completions', { model: 'large', messages: [{ role: 'user', content: 'Go on.' }], ...more });
    const running = await chat({ stream: true, ignore_eos: true, max_tokens: 800 });
    await waitFor(async () => (await small.load()).running > 0, 30_000);
    writeAdapter(folder('late'), spec, { seed: 'late', rank: 10 });
    const leave = new AbortController();
    const body = { lora_name: 'late', lora_path: folder('late') };
    const leaving = small.post('/v1/load_lora_adapter', body, { signal: leave.signal }).catch(() => 'left');
    // A name that is on its way is taken before its folder is looked for.
    const lookup = { lora_name: 'late', lora_path: folder('nowhere') };
    await waitFor(async () => (await small.post('/v1/load_lora_adapter', lookup)).status === 400, 30_000);
    const behind = chat({ max_tokens: 2 });
    leave.abort();
    expect(await leaving).toBe('left');
    expect((await behind).status).toBe(200);
    // It waited for nothing that runs.
    expect((await small.load()).running).toBeGreaterThan(0);
    await running.body?.cancel();
    const names = (await (await small.call('/v1/models')).json()) as { data: { id: string }[] };
    expect(names.data.map(({ id }) => id)).toEqual(['starter', 'large']);
    // The name and the memory are free again.
    expect((await small.post('/v1/load_lora_adapter', body)).status).toBe(200);
  } finally {
    await small.stop();
  }
}, 120_000);

test('no adapter takes the name of a trained model', async () => {
  const created = await server.post('/v1/preview/models', { project: 'p', name: 'agent', base_model: 'starter' });
  const { entity, id } = (await created.json()) as { entity: string; id: string };
  const own = `${entity}/p/agent`;
  for (const name of [`wandb-artifact:///${own}`, `wandb-artifact://${own}:step0`]) {
    const refused = await load(name, folder('one'));
    expect(refused.status).toBe(400);
    expect(refused.text).toContain('trained here');
  }
  // Without the scheme it is a name like any other, but not for whom it is a model.
  const before = await ask(own);
  expect((await load(own, folder('one'))).status).toBe(200);
  expect(await ask(own)).toEqual(before);
  expect((await server.post('/v1/unload_lora_adapter', { lora_name: own })).status).toBe(200);
  expect((await server.call(`/v1/preview/models/${id}`, { method: 'DELETE' })).status).toBe(200);
});

test('after an engine crash the adapter is read again', async () => {
  const before = await ask('one');
  process.kill(server.enginePid(), 'SIGKILL');
  expect(await ask('one')).toEqual(before);
}, 60_000);

test('a server that does not allow it has no such endpoints; bad adapters at start end it', async () => {
  const plain = await ApiServer.start();
  const body = { lora_name: 'a', lora_path: folder('one') };
  expect((await plain.post('/v1/load_lora_adapter', body)).status).toBe(404);
  expect((await plain.post('/v1/unload_lora_adapter', { lora_name: 'a' })).status).toBe(404);
  await plain.stop();
  writeAdapter(folder('broken'), spec, { seed: 'b' });
  writeFileSync(join(folder('broken'), 'adapter_config.json'), '{');
  const started = (...modules: string[]) => ApiServer.start({ flags: ['--lora-modules', modules.join()] });
  const [sound, broken] = [`a=${folder('one')}`, `b=${folder('broken')}`];
  await expect(started(sound, broken)).rejects.toThrow(
    `--lora-modules ${broken}: adapter_config.json: is not valid JSON`,
  );
  await expect(started(sound, 'c=/nowhere')).rejects.toThrow('--lora-modules c=/nowhere: adapter: the folder does not');
  await expect(started(sound, sound)).rejects.toThrow(`--lora-modules ${sound}: The lora adapter 'a' has already`);
}, 120_000);
