/** SIGKILL of the engine process under load; and an engine that hangs when the server ends. */
import { cpSync, mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { STARTER } from '../fixtures/starter.ts';
import { ApiServer, readEvents, readFileIfThere, waitFor } from './server.ts';

let server: ApiServer;
beforeAll(async () => {
  // Slow steps leave time to kill in the middle of an answer.
  server = await ApiServer.start({ env: { TANDEM_FAULTS: 'slow-steps-ms=20' } });
}, 90_000);
afterAll(() => server?.stop());

const messages = [{ role: 'user', content: 'Tell me a story.' }];
const PATH = '/v1/chat/completions';
const body = { messages, ignore_eos: true, max_tokens: 60, temperature: 1, seed: 4 };

interface Answer {
  choices: { message: { content: string } }[];
}
interface Chunk {
  choices?: { delta: { content?: string } }[];
  error?: { message: string; type: string; code: number; param: string | null };
}

test('where memory runs out the engine is ended rather than the server', () => {
  const score = (pid: number) => Number(readFileSync(`/proc/${pid}/oom_score_adj`, 'utf8'));
  expect(score(server.enginePid())).toBe(Math.min(score(server.child.pid as number) + 200, 1000));
});

test('unstreamed requests are replayed, streamed ones end with an error event, the next one works', async () => {
  const expected = (await (await server.post(PATH, body)).json()) as Answer;
  const text = expected.choices[0]?.message.content ?? '';
  const pid = server.enginePid();

  const unstreamed = Array.from({ length: 8 }, async () => {
    const response = await server.post(PATH, body);
    return { status: response.status, answer: (await response.json()) as Answer };
  });
  let seen = 0;
  const streamed = Array.from({ length: 8 }, async () => {
    const response = await server.post(PATH, { ...body, stream: true });
    let received = '';
    const decoder = new TextDecoder();
    for await (const bytes of response.body as unknown as AsyncIterable<Uint8Array>) {
      if (received === '') seen++;
      received += decoder.decode(bytes, { stream: true });
    }
    return { status: response.status, events: readEvents(received) };
  });
  await waitFor(() => seen === 8, 20_000);
  process.kill(pid, 'SIGKILL');

  for (const { status, answer } of await Promise.all(unstreamed)) {
    expect(status).toBe(200);
    expect(answer.choices[0]?.message.content).toBe(text);
  }
  for (const { status, events } of await Promise.all(streamed)) {
    expect(status).toBe(200);
    expect(events.at(-1)).toBe('[DONE]');
    const error = (events.at(-2) as Chunk).error;
    expect(error).toEqual({ message: 'Internal server error', type: 'InternalServerError', param: null, code: 500 });
    const partial = events.slice(0, -2).map((event) => (event as Chunk).choices?.[0]?.delta.content ?? '');
    expect(text.startsWith(partial.join(''))).toBe(true);
  }
  const next = (await (await server.post(PATH, body)).json()) as Answer;
  expect(next.choices[0]?.message.content).toBe(text);
  expect(server.enginePid()).not.toBe(pid);
  expect(server.child.exitCode).toBeNull();
  await waitFor(async () => {
    const { running, waiting, kvUsage } = await server.load();
    return running === 0 && waiting === 0 && kvUsage === 0;
  }, 5000);
}, 60_000);

test('constrained requests are replayed to the same text, wherever they were', async () => {
  const names = ['first_name_of_customer', 'favourite_animal_of_customer', 'remarks_about_customer'];
  const schema = {
    type: 'object',
    properties: Object.fromEntries(names.map((name) => [name, { type: 'string', minLength: 4, maxLength: 12 }])),
    required: names,
    additionalProperties: false,
  };
  const format = { type: 'json_schema', json_schema: { name: 'customer', schema } };
  const constrained = { messages, temperature: 1, max_tokens: 200, response_format: format, logprobs: true };
  const ask = async (seed: number) => {
    const response = await server.post(PATH, { ...constrained, seed });
    const { choices, usage } = (await response.json()) as { choices: unknown[]; usage: { completion_tokens: number } };
    return { status: response.status, choices, tokens: usage.completion_tokens };
  };
  const generated = () => server.metric('tandem_generation_tokens_total');
  const seeds = [1, 2, 3, 4];
  const expected = await Promise.all(seeds.map(ask));
  for (let round = 0; round < 3; round++) {
    const before = await generated();
    const answers = seeds.map(ask);
    // Further into the answers in every round.
    await waitFor(async () => (await generated()) > before + 12 + round * 40, 20_000);
    process.kill(server.enginePid(), 'SIGKILL');
    expect(await Promise.all(answers)).toEqual(expected);
  }
  for (const { choices } of expected) {
    const { message } = choices[0] as { message: { content: string } };
    expect(Object.keys(JSON.parse(message.content) as object)).toEqual(names);
  }
}, 90_000);

test('the server stays alive and says so while the engine comes back', async () => {
  process.kill(server.enginePid(), 'SIGKILL');
  await waitFor(async () => (await server.call('/ready')).status === 503, 5000);
  expect((await server.call('/health')).status).toBe(200);
  const waited = await server.post(PATH, { messages, max_tokens: 3 });
  expect(waited.status).toBe(200);
  expect((await server.call('/ready')).status).toBe(200);
}, 60_000);

test('an engine that is started again does not take other weights for those of the server', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'tandem-weights-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  cpSync(STARTER, folder, { recursive: true });
  const own = await ApiServer.start({ flags: ['--model', folder] });
  onTestFinished(() => own.stop());
  const weights = join(folder, 'model.safetensors');
  const others = readFileSync(weights);
  others.fill(0, others.length - 1000);
  writeFileSync(`${weights}.new`, others);
  renameSync(`${weights}.new`, weights);
  process.kill(own.enginePid(), 'SIGKILL');
  await waitFor(() => own.log.includes('model.safetensors: is not the file that the server began with.'), 20_000);
  const refused = await own.post(PATH, { messages, max_tokens: 3 });
  expect(refused.status).toBeGreaterThanOrEqual(500);
}, 60_000);

/** The last test of this server. */
test('a server that is ended by a second signal takes an engine that hangs along', async () => {
  const pid = server.enginePid();
  // A process that has ended has no command line, though nobody may have waited for it yet.
  const lives = () => readFileIfThere(`/proc/${pid}/cmdline`) !== '';
  onTestFinished(() => {
    if (lives()) process.kill(pid, 'SIGKILL');
  });
  const cut = server.post(PATH, body).then((response) => response.text());
  await waitFor(async () => (await server.load()).running === 1, 10_000);
  process.kill(pid, 'SIGSTOP');
  // Signals that come soon after the first are taken for the same one.
  await Promise.all([
    expect(cut).rejects.toThrow(),
    waitFor(() => !server.child.kill('SIGTERM') || server.child.exitCode !== null, 10_000),
  ]);
  expect(await server.exited).toBe(1);
  await waitFor(() => !lives(), 10_000);
}, 60_000);
