/** A job whose processes are killed on the way ends with the weights of one that nobody disturbed, bit for bit. */
import { createHash } from 'node:crypto';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TrainingClient, type TrainedModel } from '../../examples/lib/client.ts';
import { conversations } from '../../examples/sft/answer-style.ts';
import { ApiServer, waitFor } from '../api/server.ts';

const folder = mkdtempSync(join(tmpdir(), 'resume-'));
const CONFIG = { batch_size: 4, learning_rate: 1e-3 };
const DATA = conversations().slice(0, 80);

let model: TrainedModel;
/** Every server begins with a copy of the same data: the same model, so the same first adapter. */
beforeAll(async () => {
  const server = await ApiServer.start({ dataDir: join(folder, 'origin') });
  model = await new TrainingClient(server.url, server.key).register('e2e', 'resumed');
  server.child.kill('SIGTERM');
  await server.exited;
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function start(name: string): Promise<ApiServer> {
  const dataDir = join(folder, name);
  if (!readdirSync(folder).includes(name)) cpSync(join(folder, 'origin'), dataDir, { recursive: true });
  return ApiServer.start({ dataDir });
}

/** Digests of all adapters, without their order. */
function adapters(name: string): string[] {
  return filesNamed(join(folder, name), 'adapter_model.safetensors')
    .map((file) => createHash('sha256').update(readFileSync(file)).digest('hex'))
    .sort();
}

function filesNamed(directory: string, name: string): string[] {
  return readdirSync(directory, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith(name))
    .map((file) => join(directory, file));
}

const clientOf = (server: ApiServer) => new TrainingClient(server.url, server.key);

async function stepsOf(server: ApiServer, job: string): Promise<{ type: string; data: Record<string, unknown> }[]> {
  const response = await server.call(`/v1/preview/training-jobs/${job}/events?limit=100`);
  return ((await response.json()) as { data: { type: string; data: Record<string, unknown> }[] }).data;
}

const reaches = (server: ApiServer, job: string, events: number) =>
  waitFor(
    async () => (await stepsOf(server, job)).length >= events,
    120_000,
    () => server.log,
  );

it('goes on after kill -9 of the engine and of the server', async () => {
  const calm = await start('calm');
  const job = await clientOf(calm).submitSft(model, DATA, CONFIG);
  await reaches(calm, job, DATA.length / CONFIG.batch_size + 2);
  const story = (await stepsOf(calm, job)).map(({ type, data }) => [type, data['loss'], data['grad_norm']]);
  await calm.stop();

  let server = await start('killed');
  const same = await clientOf(server).submitSft(model, DATA, CONFIG);
  await reaches(server, same, 6);
  process.kill(server.enginePid(), 'SIGKILL');
  await reaches(server, same, 12);
  expect((await stepsOf(server, same)).length).toBeLessThan(story.length);
  server.child.kill('SIGKILL');
  await server.exited;
  server = await start('killed');
  await reaches(server, same, story.length);
  expect((await stepsOf(server, same)).map(({ type, data }) => [type, data['loss'], data['grad_norm']])).toEqual(story);
  await server.stop();
  expect(adapters('calm')).toHaveLength(2);
  expect(adapters('killed')).toEqual(adapters('calm'));
}, 240_000);
