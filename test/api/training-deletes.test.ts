/** Models and checkpoints that are deleted while they are trained, served or swapped in: streams end as they began, nothing is left. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createHash } from 'node:crypto';
import { json } from './preview.ts';
import { ApiServer, readEvents, waitFor } from './server.ts';

const MODELS = '/v1/preview/models';
const JOBS = '/v1/preview/training-jobs';
const TIMEOUT_MS = 120_000;

let server: ApiServer;
let base: string;
beforeAll(async () => {
  server = await ApiServer.start();
  base = ((await (await server.call('/v1/models')).json()) as { data: { id: string }[] }).data[0]?.id ?? '';
});
afterAll(() => server?.stop());

async function create(name: string): Promise<string> {
  const response = await server.post(MODELS, { project: 'p', name, base_model: base, return_existing: true });
  return ((await response.json()) as { id: string }).id;
}

function rl(modelId: string, groups: number) {
  const trajectory = (id: number, reward: number) => ({
    messages_and_choices: [
      {
        finish_reason: 'stop',
        index: 0,
        message: { role: 'assistant', content: 'x' },
        prompt_token_ids: [5, 6, 7],
        token_ids: [id, 4089],
        logprobs: { content: [id, 4089].map((token) => ({ token: `token_id:${token}`, logprob: -1.5 })) },
      },
    ],
    reward,
  });
  return {
    model_id: modelId,
    trajectory_groups: Array.from({ length: groups }, (_, g) => ({
      trajectories: [trajectory(100 + g, 1), trajectory(2000 + g, 0)],
    })),
    experimental_config: { packed_sequence_length: 16, logprob_calculation_chunk_size: 16 },
  };
}

const question = (model: string, more: object = {}) => ({
  model,
  messages: [{ role: 'user', content: 'Tell me a long story.' }],
  temperature: 0,
  ignore_eos: true,
  max_completion_tokens: 400,
  stream: true,
  return_token_ids: true,
  ...more,
});

/** A stream that has begun; `text` reads it to its end. */
async function open(model: string): Promise<{ first: Promise<void>; text: Promise<string> }> {
  const response = await server.post('/v1/chat/completions', question(model));
  if (!response.body) throw new Error('There is no stream.');
  let begun: () => void = () => undefined;
  const first = new Promise<void>((resolve) => (begun = resolve));
  const text = (async () => {
    let all = '';
    const decoder = new TextDecoder();
    for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
      all += decoder.decode(chunk, { stream: true });
      begun();
    }
    return all;
  })();
  return { first, text };
}

/** The ids and log-probabilities of a whole stream; fails where it did not end well. */
function bitsOf(text: string): string {
  const events = readEvents(text) as (
    | { choices?: { token_ids?: number[]; logprobs?: { content?: unknown[] | null } | null; finish_reason?: string }[] }
    | string
  )[];
  expect(events.at(-1)).toBe('[DONE]');
  const choices = events.flatMap((event) => (typeof event === 'string' ? [] : (event.choices ?? [])));
  expect(choices.map(({ finish_reason }) => finish_reason).filter(Boolean)).toEqual(['length']);
  // How tokens fall into chunks is the network's affair.
  const ids = choices.flatMap(({ token_ids }) => token_ids ?? []);
  const scores = choices.flatMap(({ logprobs }) => logprobs?.content ?? []);
  expect([ids.length, scores.length]).toEqual([400, 400]);
  return createHash('sha256')
    .update(JSON.stringify([ids, scores]))
    .digest('hex');
}

async function status(model: string): Promise<number> {
  return (await server.post('/v1/chat/completions', question(model, { stream: false, max_completion_tokens: 1 })))
    .status;
}

const remove = (path: string, body?: unknown) =>
  server.call(path, {
    method: 'DELETE',
    headers: { 'content-type': 'application/json' },
    ...(body ? { body: JSON.stringify(body) } : {}),
  });

test(
  'a checkpoint deleted while it streams: the stream ends with the same bits, the next request is a 404, nothing stays loaded',
  async () => {
    await create('served');
    const alone = bitsOf(await (await open('default/p/served:step0')).text);
    const id = await create('served');
    const streams = await Promise.all(Array.from({ length: 3 }, () => open('default/p/served:step0')));
    await Promise.all(streams.map(({ first }) => first));
    expect(await (await remove(`${MODELS}/${id}/checkpoints`, { steps: [0] })).json()).toEqual({
      deleted_count: 1,
      not_found_steps: [],
    });
    expect([await status('default/p/served:step0'), await status('default/p/served')]).toEqual([404, 404]);
    for (const { text } of streams) expect(bitsOf(await text)).toBe(alone);
    await waitFor(async () => (await server.metric('tandem_engine_adapters')) === 0, 60_000);
    expect((await server.load()).running).toBe(0);
  },
  TIMEOUT_MS,
);

test(
  'a model deleted while it trains and streams: the job stops, the stream ends, both are gone; a second delete says the same',
  async () => {
    const id = await create('trained');
    const alone = bitsOf(await (await open('default/p/trained')).text);
    const job = ((await (await server.post(JOBS, rl(id, 40))).json()) as { id: string }).id;
    await waitFor(async () => ((await json(server, `${JOBS}/${job}/events`))['data'] as object[]).length >= 2, 60_000);
    const stream = await open('default/p/trained:latest');
    await stream.first;
    const answers = await Promise.all([remove(`${MODELS}/${id}`), remove(`${MODELS}/${id}`)]);
    for (const answer of answers) {
      expect([answer.status, await answer.json()]).toEqual([
        200,
        { model_id: id, deleted_checkpoints: 1, deleted_run: true },
      ]);
    }
    expect(bitsOf(await stream.text)).toBe(alone);
    expect(await status('default/p/trained')).toBe(404);
    for (const path of [`${JOBS}/${job}`, `${JOBS}/${job}/events`, `${MODELS}/${id}/checkpoints`]) {
      expect((await server.call(path)).status, path).toBe(404);
    }
    await waitFor(async () => (await server.metric('tandem_engine_adapters')) === 0, 60_000);
    // The engine trains on.
    const next = await create('next');
    const after = ((await (await server.post(JOBS, rl(next, 1))).json()) as { id: string }).id;
    await waitFor(async () => (await json(server, `${JOBS}/${after}`))['status'] === 'succeeded', 60_000);
  },
  TIMEOUT_MS,
);

test(
  'the newest step, deleted as soon as it is published: the one before serves, and its number is not given again',
  async () => {
    const id = await create('latest');
    const run = async () => {
      const job = ((await (await server.post(JOBS, rl(id, 1))).json()) as { id: string }).id;
      await waitFor(async () => (await json(server, `${JOBS}/${job}`))['status'] === 'succeeded', 60_000);
    };
    await run();
    expect(await (await remove(`${MODELS}/${id}/checkpoints`, { steps: [1] })).json()).toEqual({
      deleted_count: 1,
      not_found_steps: [],
    });
    expect([await status('default/p/latest'), await status('default/p/latest:step1')]).toEqual([200, 404]);
    await run();
    const page = await json(server, `${MODELS}/${id}/checkpoints`);
    expect((page['data'] as { step: number }[]).map(({ step }) => step)).toEqual([0, 2]);
  },
  TIMEOUT_MS,
);

test('a list of a million steps, or of negative ones, is refused before anything is deleted', async () => {
  const id = await create('listed');
  for (const steps of [Array.from({ length: 1_000_000 }, (_, step) => step), [0, -1], [-(2 ** 53)], [2 ** 60]]) {
    const answer = await remove(`${MODELS}/${id}/checkpoints`, { steps });
    expect(answer.status).toBe(422);
    expect(await answer.json()).toMatchObject({
      detail: [{ loc: expect.arrayContaining(['body', 'steps']) as unknown }],
    });
  }
  expect((await json(server, `${MODELS}/${id}/checkpoints`))['data']).toHaveLength(1);
});

test(
  'a client that leaves while its adapter waits for memory holds back nobody; what is deleted shows as gone at once',
  async () => {
    // Room for one adapter.
    const small = await ApiServer.start({
      flags: ['--max-adapter-memory', '1M', '--lora-rank', '10'],
      env: { TANDEM_FAULTS: 'slow-steps-ms=20' },
    });
    try {
      const make = async (name: string) =>
        (await (await small.post(MODELS, { project: 'p', name, base_model: base })).json()) as { id: string };
      const [used, other] = [await make('used'), await make('other')];
      const send = (model: string, more: object, signal?: AbortSignal) =>
        small.post('/v1/chat/completions', question(model, more), signal ? { signal } : {});
      const running = await send('default/p/used', { max_completion_tokens: 800 });
      const leave = new AbortController();
      const leaving = send('default/p/other', { stream: false }, leave.signal).catch(() => 'left');
      await new Promise((resolve) => setTimeout(resolve, 300));
      const behind = send('default/p/used', { max_completion_tokens: 2 });
      leave.abort();
      expect(await leaving).toBe('left');
      expect((await behind).status).toBe(200);
      // It waited for nothing that runs.
      expect((await small.load()).running).toBeGreaterThan(0);
      await running.body?.cancel();
      for (const { id } of [used, other]) await small.call(`${MODELS}/${id}`, { method: 'DELETE' });
      await waitFor(async () => (await small.metric('tandem_engine_adapters')) === 0, 10_000);
    } finally {
      await small.stop();
    }
  },
  TIMEOUT_MS,
);
