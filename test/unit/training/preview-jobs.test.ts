/** Training jobs over HTTP: the wire format of the clients, states, events, cancel, idempotency, ownership. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CLIENT_RL_CONFIG } from '../../fixtures/client-rl-config.ts';
import { allEvents, createModel, finished, group, startPlane, trajectory, type Plane } from './plane.ts';

const JOBS = '/v1/preview/training-jobs';
const UUID = /^[0-9a-f-]{36}$/;

let plane: Plane;
beforeAll(async () => {
  plane = await startPlane();
}, 120_000);
afterAll(() => plane?.end());

const rl = (modelId: string, more: object = {}) => ({
  model_id: modelId,
  trajectory_groups: [group([1, 0, 0.5])],
  experimental_config: CLIENT_RL_CONFIG,
  ...more,
});

describe('an RL job', () => {
  test('as the client drives it', async () => {
    const { id: modelId } = await createModel(plane, 'agent');
    const created = await plane.ok(JOBS, rl(modelId));
    expect(created).toEqual({ id: expect.stringMatching(UUID) as string });
    const jobId = String(created['id']);
    const events = await finished(plane, jobId);
    expect(events.map(({ type }) => type)).toEqual(['training_started', 'gradient_step', 'training_ended']);
    expect(events[0]?.data['num_sequences']).toBe(1);
    // The client puts every value of a step through float().
    for (const value of Object.values(events[1]?.data ?? {})) expect(Number.isFinite(value)).toBe(true);
    const checkpoints = await plane.json(`/v1/preview/models/${modelId}/checkpoints?limit=1&order=desc`);
    expect(checkpoints).toMatchObject({ data: [{ step: 1 }], has_more: true });
    expect(await plane.json(`${JOBS}/${jobId}`)).toMatchObject({
      id: jobId,
      model_id: modelId,
      kind: 'rl',
      status: 'succeeded',
      error_message: null,
      progress: { gradient_steps: 1, num_sequences: 1 },
    });
    // The version was made servable before the end was told.
    expect(plane.engine_.loaded.at(-1)?.version).toMatch(/^[0-9a-f]{64}\.[0-9a-f]{64}\.[0-9a-f-]{36}$/);
  });

  test.each([(id: string) => id.toUpperCase(), (id: string) => id.replaceAll('-', '')])(
    'ids may be in capitals, and without hyphens, in bodies and in paths',
    async (spell) => {
      const { id: modelId, run_id: run } = await createModel(plane, 'spelled');
      const job = String((await plane.ok(JOBS, rl(spell(modelId))))['id']);
      const events = await finished(plane, job);
      expect(events.at(-1)?.type).toBe('training_ended');
      const model = `/v1/preview/models/${spell(modelId)}`;
      const log = await plane.ok(`${model}/log`, { model_id: spell(modelId), split: 'a', trajectory_groups: [] });
      const artifact = await plane.ok('/v1/preview/artifacts', { project: 'p', name: 'spelled' });
      for (const [path, id] of [
        [`${JOBS}/${spell(job)}`, job],
        [`${model}/log/${spell(String(log['id']))}`, log['id']],
        [`/v1/preview/artifacts/${spell(String(artifact['id']))}`, artifact['id']],
      ])
        expect(await plane.json(String(path))).toMatchObject({ id });
      const page = await plane.json(`${JOBS}/${spell(job)}/events?after=${spell(events[0]?.id ?? '')}`);
      expect(page['data']).toEqual(events.slice(1));
      expect(await plane.json(`/v1/preview/runs/${spell(run)}/history`)).toMatchObject({ object: 'list' });
      const deleted = await plane.json(model, { method: 'DELETE' });
      expect(deleted).toMatchObject({ model_id: modelId, deleted_checkpoints: 2 });
    },
  );

  test('its events are stable, paged and readable from any of them', async () => {
    const { id: modelId } = await createModel(plane, 'events');
    const { id } = await plane.ok(JOBS, rl(modelId, { trajectory_groups: [group([1, 0]), group([0, 2])] }));
    const events = await finished(plane, String(id));
    expect(await allEvents(plane, String(id), 1)).toEqual(events);
    expect(new Set(events.map((event) => event.id)).size).toBe(events.length);
    const rest = await plane.json(`${JOBS}/${String(id)}/events?after=${events[0]?.id}`);
    expect(rest['data']).toEqual(events.slice(1));
    expect(rest).toMatchObject({
      object: 'list',
      first_id: events[1]?.id,
      last_id: events.at(-1)?.id,
      has_more: false,
    });
    expect((await plane.call(`${JOBS}/${String(id)}/events?after=nothing`)).status).toBe(422);
    expect((await plane.call(`${JOBS}/${String(id)}/events?limit=101`)).status).toBe(422);
  });

  test('with nothing to train on still makes a step', async () => {
    const { id: modelId } = await createModel(plane, 'flat');
    for (const [step, groups] of [[group([1, 1])], [group([1])], []].entries()) {
      const { id } = await plane.ok(JOBS, rl(modelId, { trajectory_groups: groups }));
      const events = await finished(plane, String(id));
      expect(events.map(({ type }) => type)).toEqual(['training_started', 'training_ended']);
      expect(events[0]?.data['num_sequences']).toBe(0);
      const page = await plane.json(`/v1/preview/models/${modelId}/checkpoints?limit=1&order=desc`);
      expect(page).toMatchObject({ data: [{ step: step + 1 }] });
    }
  });

  test('without any log-probability fails and says why; the step stays', async () => {
    const { id: modelId } = await createModel(plane, 'mute');
    const mute = (reward: number) => ({ messages_and_choices: [{ role: 'assistant', content: 'x' }], reward });
    for (const groups of [[{ trajectories: [mute(1), mute(0)] }]]) {
      const { id } = await plane.ok(JOBS, rl(modelId, { trajectory_groups: groups }));
      const events = await finished(plane, String(id));
      const message = expect.stringContaining('no assistant logprobs') as string;
      expect(events.at(-1)).toMatchObject({ type: 'training_failed', data: { error_message: message } });
      expect(await plane.json(`${JOBS}/${String(id)}`)).toMatchObject({ status: 'failed', error_message: message });
    }
    const page = await plane.json(`/v1/preview/models/${modelId}/checkpoints`);
    expect(page).toMatchObject({ data: [{ step: 0 }] });
  });

  test('its numbers are in the run and in /metrics', async () => {
    const { id: modelId, run_id: run } = await createModel(plane, 'measured');
    await finished(plane, String((await plane.ok(JOBS, rl(modelId)))['id']));
    const history = await plane.json(`/v1/preview/runs/${run}/history`);
    expect(history['data']).toMatchObject([{ step: 1, metrics: { 'train/loss': expect.any(Number) as number } }]);
    const page = await plane.json(`/v1/preview/models/${modelId}/checkpoints?order=desc&limit=1`);
    expect(page).toMatchObject({ data: [{ step: 1, metrics: { 'train/loss': expect.any(Number) as number } }] });
    const metrics = await (await plane.call('/metrics')).text();
    expect(metrics).toMatch(/^tandem_training_jobs\{state="succeeded"\} [1-9]/m);
    expect(metrics).toMatch(/^tandem_training_gradient_steps_total [1-9]/m);
    expect(metrics).toMatch(/^tandem_training_eta_seconds 0$/m);
    expect(metrics).not.toContain(modelId);
    // Whoever may read /metrics must not learn how the others' training goes.
    expect(metrics).not.toMatch(/^tandem_training_(loss|reward|grad_norm)\b/m);
  });

  test('a step that changed nothing is in its event and in /metrics', async () => {
    const { id: modelId } = await createModel(plane, 'poisoned');
    const skipped = async () => {
      const metrics = await (await plane.call('/metrics')).text();
      return Number(/^tandem_training_skipped_steps_total (\d+)$/m.exec(metrics)?.[1] ?? NaN);
    };
    expect(await skipped()).toBe(0);
    plane.engine_.poison = true;
    const events = await finished(plane, String((await plane.ok(JOBS, rl(modelId)))['id']));
    expect(events[1]?.data).toMatchObject({ skipped_step: 1 });
    expect(await skipped()).toBe(1);
  });
});

describe('cancel', () => {
  test('a queued job ends at once, a running one within a step; both with an event', async () => {
    const { id: modelId } = await createModel(plane, 'cancelled');
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    plane.engine_.beforeCall = () => held;
    try {
      const running = String((await plane.ok(JOBS, rl(modelId)))['id']);
      const queued = String((await plane.ok(JOBS, rl(modelId)))['id']);
      await expect.poll(async () => (await plane.json(`${JOBS}/${running}`))['status']).toBe('running');
      expect(await plane.json(`${JOBS}/${queued}/cancel`, { method: 'POST' })).toMatchObject({ status: 'cancelled' });
      const stopping = plane.json(`${JOBS}/${running}/cancel`, { method: 'POST' });
      // The run has let its session go; the call that it waits for ends after that.
      await expect.poll(() => plane.engine_.open).toBe(0);
      release();
      expect(await stopping).toMatchObject({ status: 'cancelled', error_message: 'The job was cancelled.' });
      for (const id of [running, queued]) {
        const events = await allEvents(plane, id);
        expect(events.at(-1)).toMatchObject({
          type: 'training_failed',
          data: { error_message: 'The job was cancelled.' },
        });
        expect(await plane.json(`${JOBS}/${id}/cancel`, { method: 'POST' })).toMatchObject({ status: 'cancelled' });
        expect(await allEvents(plane, id)).toEqual(events);
      }
    } finally {
      release();
      plane.engine_.beforeCall = () => undefined;
    }
    const page = await plane.json(`/v1/preview/models/${modelId}/checkpoints`);
    expect(page).toMatchObject({ data: [{ step: 0 }] });
  });

  test('deleting the model stops its job; its events are gone', async () => {
    const { id: modelId } = await createModel(plane, 'removed');
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    plane.engine_.beforeCall = () => held;
    const job = String((await plane.ok(JOBS, rl(modelId)))['id']);
    await expect.poll(async () => (await plane.json(`${JOBS}/${job}`))['status']).toBe('running');
    const deleting = plane.json(`/v1/preview/models/${modelId}`, { method: 'DELETE' });
    await expect.poll(() => plane.engine_.open).toBe(0);
    release();
    expect(await deleting).toMatchObject({ deleted_checkpoints: 1, deleted_run: true });
    plane.engine_.beforeCall = () => undefined;
    expect((await plane.call(`${JOBS}/${job}/events`)).status).toBe(404);
    // The next job of another model runs.
    const { id: next } = await createModel(plane, 'after-removed');
    expect((await finished(plane, String((await plane.ok(JOBS, rl(next)))['id']))).at(-1)?.type).toBe('training_ended');
  });
});

describe('Idempotency-Key', () => {
  test('the same request again is the same job; another body is refused', async () => {
    const { id: modelId } = await createModel(plane, 'repeated');
    const headers = { 'idempotency-key': 'once-only' };
    const make = async (body: object) => {
      const response = await plane.post(JOBS, body, headers);
      return [response.status, (await response.json()) as { id?: string }] as const;
    };
    const [status, first] = await make(rl(modelId));
    expect(status).toBe(200);
    const again = await Promise.all([make(rl(modelId)), make(rl(modelId)), make(rl(modelId))]);
    for (const [code, body] of again) expect([code, body]).toEqual([200, first]);
    const [other, body] = await make(rl(modelId, { trajectory_groups: [] }));
    expect(other).toBe(422);
    expect(body).toMatchObject({ detail: [{ loc: ['header', 'Idempotency-Key'] }] });
    await finished(plane, String(first.id));
    const page = await plane.json(`/v1/preview/models/${modelId}/checkpoints`);
    expect((page['data'] as unknown[]).length).toBe(2);
    const empty = await plane.post(JOBS, rl(modelId), { 'idempotency-key': '' });
    expect([empty.status, await empty.json()]).toMatchObject([
      422,
      { detail: [{ loc: ['header', 'Idempotency-Key'] }] },
    ]);
    // Another entity's key of the same text is another key.
    const theirs = await plane.post(
      '/v1/preview/models',
      { project: 'p', name: 'x', base_model: 'alias' },
      plane.as('rivals'),
    );
    const { id } = (await theirs.json()) as { id: string };
    const job = await plane.post(JOBS, rl(id), { ...headers, ...plane.as('rivals') });
    expect(((await job.json()) as { id: string }).id).not.toBe(first.id);
  });
});

describe('what is refused', () => {
  const never = '00000000-0000-4000-8000-000000000000';
  const one = (more: object) => [{ trajectories: [trajectory([5, 6], 1, more)] }];
  const choice = (more: object) => ({
    messages_and_choices: [{ finish_reason: 'stop', index: 0, message: { role: 'assistant', content: 'x' }, ...more }],
  });
  const at = (...loc: (string | number)[]) => ['body', 'trajectory_groups', 0, 'trajectories', 0, ...loc];
  const element = (...loc: (string | number)[]) => at('messages_and_choices', 0, ...loc);
  const scored = [{ token: 'token_id:5', logprob: -1 }];
  const logprobs = (entry: object) => ({ logprobs: { content: [{ ...scored[0], ...entry }] } });
  const BAD: [string, (id: string) => object | string, (string | number)[]][] = [
    ['no model', () => ({ trajectory_groups: [] }), ['body', 'model_id']],
    ['a model id that is none', () => ({ model_id: 'x', trajectory_groups: [] }), ['body', 'model_id']],
    ['no groups', (id) => ({ model_id: id }), ['body', 'trajectory_groups']],
    ['groups that are none', (id) => ({ model_id: id, trajectory_groups: 5 }), ['body', 'trajectory_groups']],
    ['a field that jobs do not have', (id) => rl(id, { config: { learning_rate: 1 } }), ['body', 'config']],
    ['a group that is none', (id) => rl(id, { trajectory_groups: [[]] }), ['body', 'trajectory_groups', 0]],
    ['no trajectories', (id) => rl(id, { trajectory_groups: [{}] }), ['body', 'trajectory_groups', 0, 'trajectories']],
    [
      'an unknown key',
      (id) => rl(id, { experimental_config: { epsilom: 1 } }),
      ['body', 'experimental_config', 'epsilom'],
    ],
    [
      'an unknown key among those that are left out',
      (id) => rl(id, { experimental_config: { newer: null, epsilom: 0 } }),
      ['body', 'experimental_config', 'epsilom'],
    ],
    [
      'a negative epsilon',
      (id) => rl(id, { experimental_config: { epsilon: -1 } }),
      ['body', 'experimental_config', 'epsilon'],
    ],
    [
      'a huge rate',
      (id) => rl(id, { experimental_config: { learning_rate: 1e9 } }),
      ['body', 'experimental_config', 'learning_rate'],
    ],
    [
      'a huge row',
      (id) => rl(id, { experimental_config: { packed_sequence_length: 2 ** 30 } }),
      ['body', 'experimental_config', 'packed_sequence_length'],
    ],
    [
      'a row that is no multiple',
      (id) => rl(id, { experimental_config: { packed_sequence_length: 1000 } }),
      ['body', 'experimental_config', 'packed_sequence_length'],
    ],
    [
      'a reference step that is not there',
      (id) => rl(id, { experimental_config: { kl_penalty_coef: 0.1, kl_penalty_reference_step: 77 } }),
      ['body', 'experimental_config', 'kl_penalty_reference_step'],
    ],
    ['a reward of text', (id) => rl(id, { trajectory_groups: one({ reward: '1' }) }), at('reward')],
    ['a huge reward', (id) => rl(id, { trajectory_groups: one({ reward: 1e308 }) }), at('reward')],
    [
      'an infinite reward',
      (id) => JSON.stringify(rl(id, { trajectory_groups: one({ reward: 7.5 }) })).replace('7.5', '1e999'),
      at('reward'),
    ],
    [
      'NaN',
      (id) => JSON.stringify(rl(id, { trajectory_groups: one({ reward: 7.5 }) })).replace('7.5', 'NaN'),
      ['body', 'trajectory_groups', 0],
    ],
    [
      'versions that go back',
      (id) => rl(id, { trajectory_groups: one({ initial_policy_version: 3, final_policy_version: 2 }) }),
      at('final_policy_version'),
    ],
    [
      'a version of halves',
      (id) => rl(id, { trajectory_groups: one({ initial_policy_version: 0.5 }) }),
      at('initial_policy_version'),
    ],
    ['a time that is none', (id) => rl(id, { trajectory_groups: one({ start_time: 'yesterday' }) }), at('start_time')],
    ['a metric of text', (id) => rl(id, { trajectory_groups: one({ metrics: { a: 'b' } }) }), at('metrics', 'a')],
    ['logs of numbers', (id) => rl(id, { trajectory_groups: one({ logs: [1] }) }), at('logs', 0)],
    [
      'a tool without a name',
      (id) => rl(id, { trajectory_groups: one({ tools: [{ type: 'function', function: {} }] }) }),
      at('tools', 0, 'function', 'name'),
    ],
    [
      'strict of text',
      (id) =>
        rl(id, { trajectory_groups: one({ tools: [{ type: 'function', function: { name: 'f', strict: 'y' } }] }) }),
      at('tools', 0, 'function', 'strict'),
    ],
    [
      'a history without messages',
      (id) => rl(id, { trajectory_groups: one({ additional_histories: [{}] }) }),
      at('additional_histories', 0, 'messages_and_choices'),
    ],
    [
      'an unknown role',
      (id) => rl(id, { trajectory_groups: one({ messages_and_choices: [{ role: 'root', content: '' }] }) }),
      element('role'),
    ],
    ['a message of text', (id) => rl(id, { trajectory_groups: one({ messages_and_choices: ['hi'] }) }), element()],
    [
      'an image before a reply',
      (id) => {
        const { messages_and_choices: replies } = choice(logprobs({}));
        const image = { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:' } }] };
        return rl(id, { trajectory_groups: one({ messages_and_choices: [image, ...replies] }) });
      },
      element('content', 0),
    ],
    [
      'a choice without a message',
      (id) => rl(id, { trajectory_groups: one({ messages_and_choices: [{ finish_reason: 'stop' }] }) }),
      element('message'),
    ],
    [
      'a positive logprob',
      (id) => rl(id, { trajectory_groups: one(choice(logprobs({ logprob: 0.5 }))) }),
      element('logprobs', 'content', 0, 'logprob'),
    ],
    [
      'a logprob of null',
      (id) => rl(id, { trajectory_groups: one(choice(logprobs({ logprob: null }))) }),
      element('logprobs', 'content', 0, 'logprob'),
    ],
    [
      'a token outside',
      (id) => rl(id, { trajectory_groups: one(choice(logprobs({ token: 'token_id:4096' }))) }),
      element('logprobs', 'content', 0, 'token'),
    ],
    [
      'an id outside',
      (id) => rl(id, { trajectory_groups: one(choice({ token_ids: [4096] })) }),
      element('token_ids', 0),
    ],
    ['a negative id', (id) => rl(id, { trajectory_groups: one(choice({ token_ids: [-1] })) }), element('token_ids', 0)],
    [
      'ids of another length',
      (id) => rl(id, { trajectory_groups: one(choice({ ...logprobs({}), token_ids: [5, 6] })) }),
      element('logprobs', 'content'),
    ],
    [
      'ids of another length than a refusal',
      (id) => rl(id, { trajectory_groups: one(choice({ logprobs: { refusal: scored }, token_ids: [5, 6] })) }),
      element('logprobs', 'refusal'),
    ],
    [
      'ids that disagree',
      (id) => rl(id, { trajectory_groups: one(choice({ ...logprobs({}), token_ids: [6] })) }),
      element('logprobs', 'content', 0, 'token'),
    ],
    [
      'a completion that is not remembered',
      (id) => rl(id, { trajectory_groups: one(choice({ request_id: 'chatcmpl-x' })) }),
      element('request_id'),
    ],
    [
      'groups given twice',
      (id) => `{"model_id":"${id}","trajectory_groups":[],"trajectory_groups":[]}`,
      ['body', 'trajectory_groups'],
    ],
    ['a body that ends early', (id) => `{"model_id":"${id}","trajectory_groups":[`, ['body', 72]],
    ['a deep body', (id) => `{"model_id":"${id}","x":${'['.repeat(300)}`, ['body', 'x']],
    ['no JSON', () => 'hello', ['body', 0]],
  ];

  test.each(BAD)('%s', async (_name, make, place) => {
    const loc = place.map(String);
    const { id } = await createModel(plane, 'refusing');
    const response = await plane.post(JOBS, make(id));
    const body = (await response.json()) as { detail: { loc: unknown; msg: string; type: string }[] };
    expect(response.status, JSON.stringify(body)).toBe(422);
    expect(body.detail[0]?.loc, body.detail[0]?.msg).toEqual(loc);
    expect(body.detail[0]).toEqual({ loc, msg: expect.any(String) as string, type: expect.any(String) as string });
  });

  test('nothing of what was refused is kept', async () => {
    const { id } = await createModel(plane, 'refusing');
    const page = await plane.json(`/v1/preview/models/${id}/checkpoints`);
    expect(page).toMatchObject({ data: [{ step: 0 }] });
    const { readdirSync } = await import('node:fs');
    expect(readdirSync(`${plane.dataDir}/blobs/drafts`)).toEqual([]);
  });

  test('a foreign job, model or run is as unknown as none', async () => {
    const { id: modelId, run_id: run } = await createModel(plane, 'private');
    const job = String((await plane.ok(JOBS, rl(modelId)))['id']);
    await finished(plane, job);
    const headers = { ...plane.as('rivals'), 'content-type': 'application/json' };
    const calls: [string, (id: string) => [string, RequestInit]][] = [
      [job, (id) => [`${JOBS}/${id}`, {}]],
      [job, (id) => [`${JOBS}/${id}/events`, {}]],
      [job, (id) => [`${JOBS}/${id}/cancel`, { method: 'POST' }]],
      [modelId, (id) => [JOBS, { method: 'POST', body: JSON.stringify(rl(id)) }]],
      [
        modelId,
        (id) => [`/v1/preview/models/${id}/log`, { method: 'POST', body: '{"split":"a","trajectory_groups":[]}' }],
      ],
      [modelId, (id) => [`/v1/preview/models/${id}/log`, {}]],
      [run, (id) => [`/v1/preview/runs/${id}/history`, {}]],
    ];
    for (const [id, make] of calls) {
      const answers = [id, never].map(async (target) => {
        const [path, init] = make(target);
        const response = await plane.call(path, { ...init, headers });
        return [response.status, await response.text()];
      });
      const [theirs, none] = await Promise.all(answers);
      expect(theirs?.[0], make(id)[0]).toBe(404);
      expect(theirs).toEqual(none);
    }
  });

  test('an absent Content-Type and compressed bodies', async () => {
    const text = await plane.call(JOBS, { method: 'POST', body: 'x', headers: { 'content-type': 'text/plain' } });
    expect(text.status).toBe(422);
    const gzip = { 'content-type': 'application/json', 'content-encoding': 'gzip' };
    expect((await plane.call(JOBS, { method: 'POST', body: 'x', headers: gzip })).status).toBe(415);
  });
});

describe('a completion named by its id', () => {
  test('is stored with the job, and trains', async () => {
    const { id: modelId } = await createModel(plane, 'named');
    const prompt = Int32Array.from(plane.chat.ids('<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n'));
    const say = (ids: number[]) => ({ ids, logprobs: ids.map(() => -0.5) });
    plane.samples.remember('chatcmpl-1', 'default', [prompt], [say([7, 8]), say([9])]);
    plane.samples.remember('chatcmpl-2', 'rivals', [prompt], [say([7, 8])]);
    const named = (requestId: string, index: number, reward: number) => ({
      messages_and_choices: [
        { role: 'user', content: 'hi' },
        { finish_reason: 'stop', index, message: { role: 'assistant', content: 'x' }, request_id: requestId },
      ],
      reward,
    });
    const groups = [{ trajectories: [named('chatcmpl-1', 0, 1), named('chatcmpl-1', 1, 0)] }];
    const { id } = await plane.ok(JOBS, rl(modelId, { trajectory_groups: groups }));
    const events = await finished(plane, String(id));
    expect(events.at(-1)?.type, JSON.stringify(events)).toBe('training_ended');
    expect(events[1]?.data['num_trainable_tokens']).toBe(3);
    const theirs = await plane.post(
      JOBS,
      rl(modelId, { trajectory_groups: [{ trajectories: [named('chatcmpl-2', 0, 1)] }] }),
    );
    expect(theirs.status).toBe(422);
  });
});
