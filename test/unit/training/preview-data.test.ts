/** Logs and run history over HTTP; uploads that are large, slow, broken or hostile. */
import { readdirSync, readlinkSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { BASE, createModel, finished, group, startPlane, trajectory, type Plane } from './plane.ts';

const MAX_BODY = 8 * 2 ** 20;

let plane: Plane;
beforeAll(async () => {
  plane = await startPlane({ settings: { maxTrainingBodyBytes: MAX_BODY, requestTimeoutMs: 1500 } });
}, 120_000);
afterAll(() => plane?.end());

const logPath = (id: string) => `/v1/preview/models/${id}/log`;
const drafts = () => readdirSync(join(plane.dataDir, 'blobs', 'drafts'));
/** Files of artifacts that this process holds open. */
const openArtifacts = () =>
  readdirSync('/proc/self/fd').filter((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`).startsWith(join(plane.dataDir, 'blobs', 'uploads'));
    } catch {
      return false;
    }
  });

describe('log', () => {
  test('stores what it was sent, measures it, and gives it back', async () => {
    const { id, run_id: run } = await createModel(plane, 'logged');
    const extras = {
      metadata: { scenario_id: 's1', note: 'ü€😀' },
      logs: ['one', 'two'],
      metrics: { correct: true, turns: 3 },
      start_time: '2026-01-02T03:04:05.678Z',
      auto_metrics: { x: 1 },
      additional_histories: [{ messages_and_choices: [{ role: 'user', content: null, name: 'n' }], tools: null }],
    };
    const groups = [
      group([1, 0], { metrics: { g: 2 }, exceptions: [{ type: 'E', message: 'm', traceback: 't' }] }),
      { trajectories: [trajectory([5], 0.5, extras)] },
    ];
    const logged = await plane.ok(logPath(id), { split: 'val', model_id: id, trajectory_groups: groups });
    const metrics = {
      'val/reward': 0.5,
      'val/correct': 1,
      'val/turns': 3,
      'val/group_g': 2,
      'val/exception_rate': 0.25,
      'val/reward_std_dev': 0.5,
      'val/policy_lag': 0,
    };
    expect(logged).toMatchObject({ split: 'val', step: 0, num_groups: 2, num_trajectories: 3, metrics });
    const page = await plane.json(logPath(id));
    expect(page['data']).toEqual([logged]);
    const back = await plane.json(`${logPath(id)}/${String(logged['id'])}`);
    expect(back['trajectory_groups']).toEqual(groups);
    const checkpoints = await plane.json(`/v1/preview/models/${id}/checkpoints`);
    expect(checkpoints).toMatchObject({ data: [{ step: 0, metrics }] });
    const history = await plane.json(`/v1/preview/runs/${run}/history`);
    expect(history['data']).toMatchObject([{ step: 0, metrics }]);
  });

  test('gives numbers back as they were sent, beside completions that are filled in as well', async () => {
    const { id } = await createModel(plane, 'numbers');
    const prompt = Int32Array.from([1, 2]);
    plane.samples.remember('chatcmpl-7', 'default', [prompt], [{ ids: [3], logprobs: [-1] }]);
    const metadata = `"metadata": {"user": 12345678901234567890, "score": 1.0, "text": "1.0\\n12345678901234567890"}`;
    const reply = '{"finish_reason": "stop", "index": 0, "message": {"content": "x"}, "request_id": "chatcmpl-7"}';
    const body = `{"split": "val", "trajectory_groups": [
      {"trajectories":
        [{"reward": 1.0, ${metadata}}], "metrics": {"m": 1e2}},
      {"trajectories": [{"messages_and_choices": [{"role": "user", "content": "hi"}, ${reply}], ${metadata}}]}
    ]}`;
    const logged = (await (await plane.post(logPath(id), body)).json()) as { id: string; metrics: object };
    expect(logged.metrics).toMatchObject({ 'val/reward': 0.5, 'val/group_m': 100 });
    const back = await (await plane.call(`${logPath(id)}/${logged.id}`)).text();
    const compact = (text: string) => text.replaceAll(/\s/g, '');
    expect(compact(back)).toContain(
      compact(`"trajectory_groups":[{"trajectories":[{"reward":1.0,${metadata}}],"metrics":{"m":1e2}},`),
    );
    expect(compact(back).split(compact(metadata))).toHaveLength(3);
    expect((JSON.parse(back) as { trajectory_groups: unknown[] }).trajectory_groups[1]).toMatchObject({
      trajectories: [{ messages_and_choices: [{}, { prompt_token_ids: [1, 2], token_ids: [3] }] }],
    });
  });

  test('the last log of a name wins; splits stand beside each other; filters', async () => {
    const { id } = await createModel(plane, 'twice');
    for (const [split, reward] of [
      ['train', 1],
      ['val', 2],
      ['val', 4],
      ['val/hard', 8],
    ] as const) {
      await plane.ok(logPath(id), { split, trajectory_groups: [group([reward])] });
    }
    const checkpoints = await plane.json(`/v1/preview/models/${id}/checkpoints`);
    expect(checkpoints).toMatchObject({
      data: [{ metrics: { 'train/reward': 1, 'val/reward': 4, 'val/hard/reward': 8 } }],
    });
    const count = async (query: string) => ((await plane.json(`${logPath(id)}${query}`))['data'] as unknown[]).length;
    expect(await count('?split=val')).toBe(2);
    expect(await count('?split=val/hard')).toBe(1);
    expect(await count('?split=none')).toBe(0);
    expect(await count('?step=0')).toBe(4);
    expect(await count('?step=1')).toBe(0);
    expect(await count('?limit=2')).toBe(2);
    expect((await plane.call(`${logPath(id)}?step=x`)).status).toBe(422);
  });

  test('what a list is not asked by is refused, instead of showing all', async () => {
    const { id, run_id: run } = await createModel(plane, 'asked');
    const job = await plane.ok('/v1/preview/training-jobs', { model_id: id, trajectory_groups: [] });
    for (const [list, field] of [
      [logPath(id), 'order'],
      [`/v1/preview/runs/${run}/history`, 'step'],
      [`/v1/preview/training-jobs/${String(job['id'])}/events`, 'order'],
      ['/v1/preview/artifacts', 'name'],
      [`/v1/preview/models/${id}/checkpoints`, 'offset'],
    ] as const) {
      const refused = await plane.call(`${list}?${field}=1`);
      expect([refused.status, await refused.json()], list).toMatchObject([
        422,
        { detail: [{ loc: ['query', field], msg: expect.stringContaining("'after', 'limit'") as string }] },
      ]);
    }
    await finished(plane, String(job['id']));
  });

  test('belongs to the newest step, and goes with the model', async () => {
    const { id, run_id: run } = await createModel(plane, 'stepping');
    const job = await plane.ok('/v1/preview/training-jobs', { model_id: id, trajectory_groups: [group([1, 0])] });
    await finished(plane, String(job['id']));
    const logged = await plane.ok(logPath(id), { split: 'val', trajectory_groups: [group([3])] });
    expect(logged).toMatchObject({ step: 1, metrics: { 'val/policy_lag': 1 } });
    const checkpoints = await plane.json(`/v1/preview/models/${id}/checkpoints?order=desc`);
    expect(checkpoints).toMatchObject({
      data: [
        { step: 1, metrics: { 'val/reward': 3 } },
        { step: 0, metrics: {} },
      ],
    });
    const before = readdirSync(join(plane.dataDir, 'blobs', 'trajectories')).length;
    await plane.json(`/v1/preview/models/${id}`, { method: 'DELETE' });
    expect((await plane.call(`/v1/preview/runs/${run}/history`)).status).toBe(404);
    await expect.poll(() => readdirSync(join(plane.dataDir, 'blobs', 'trajectories')).length).toBe(before - 1);
  });

  test('takes what any model said: tokens as texts, ids of another vocabulary, completions that nobody remembers', async () => {
    const { id } = await createModel(plane, 'foreign');
    const reply = (more: object) => [
      { role: 'user', content: 'hi' },
      { finish_reason: 'stop', index: 0, message: { role: 'assistant', content: 'yo' }, ...more },
    ];
    const logprobs = (token: string) => ({ content: [{ token, logprob: -1, bytes: null, top_logprobs: [] }] });
    const trajectories = [
      reply({ logprobs: logprobs('yo') }),
      reply({ logprobs: logprobs('token_id:151935'), token_ids: [151_935] }),
      reply({ logprobs: null, request_id: 'chatcmpl-elsewhere' }),
    ].map((messages_and_choices) => ({ messages_and_choices, reward: 1, metadata: { request_id: 'chatcmpl-mine' } }));
    const groups = [{ trajectories }];
    const logged = await plane.ok(logPath(id), { split: 'val', trajectory_groups: groups });
    expect(logged['metrics']).toMatchObject({ 'val/reward': 1 });
    const back = await plane.json(`${logPath(id)}/${String(logged['id'])}`);
    expect(back['trajectory_groups']).toEqual(groups);
    // To be trained they must say which ids they were.
    const body = {
      model_id: id,
      trajectory_groups: [{ trajectories: [{ messages_and_choices: reply({ logprobs: logprobs('yo') }) }] }],
    };
    expect((await plane.post('/v1/preview/training-jobs', body)).status).toBe(422);
  });

  test('no trajectories at all', async () => {
    const { id } = await createModel(plane, 'void');
    const logged = await plane.ok(logPath(id), { split: 'val', trajectory_groups: [] });
    expect(logged['metrics']).toEqual({ 'val/exception_rate': 0, 'val/reward_std_dev': 0 });
    const back = await plane.json(`${logPath(id)}/${String(logged['id'])}`);
    expect(back['trajectory_groups']).toEqual([]);
  });

  test('hostile names stay names', async () => {
    const { id } = await createModel(plane, 'hostile');
    const groups =
      '[{"trajectories":[{"reward":1,"metrics":{"__proto__":2,"constructor":3}}],"__proto__":{"polluted":true}}]';
    const refused = await plane.post(logPath(id), `{"split":"val","__proto__":{},"trajectory_groups":${groups}}`);
    expect([refused.status, await refused.json()]).toMatchObject([422, { detail: [{ loc: ['body', '__proto__'] }] }]);
    const response = await plane.post(logPath(id), `{"split":"val","trajectory_groups":${groups}}`);
    expect(response.status).toBe(200);
    const page = await plane.json(`/v1/preview/models/${id}/checkpoints`);
    const [{ metrics } = { metrics: {} }] = page['data'] as { metrics: Record<string, number> }[];
    expect(Object.entries(metrics)).toContainEqual(['val/__proto__', 2]);
    expect(({} as Record<string, unknown>)['polluted']).toBeUndefined();
  });

  test('names of metrics are bounded: those of one log, and all of a checkpoint', async () => {
    const { id } = await createModel(plane, 'many-names');
    const named = (prefix: string, count: number) =>
      Object.fromEntries(Array.from({ length: count }, (_, i) => [`${prefix}${i}`, i]));
    const log = (...each: object[]) => {
      const trajectories = each.map((metrics) => ({ reward: 1, metrics }));
      return plane.post(logPath(id), { split: 'val', trajectory_groups: [{ trajectories }] });
    };
    const refused = await log(named('a', 600), named('b', 401));
    expect(refused.status).toBe(422);
    expect(await refused.json()).toMatchObject({ detail: [{ loc: ['body', 'trajectory_groups', '0'] }] });
    expect((await log(named('a', 1000), named('a', 1000))).status).toBe(200);
    expect((await log(named('b', 900))).status).toBe(200);
    const beyond = await log(named('c', 900));
    expect(beyond.status).toBe(409);
    expect(await beyond.json()).toMatchObject({ error: { param: 'trajectory_groups' } });
    expect((await log(named('a', 1000))).status).toBe(200);
    expect((await plane.json(logPath(id)))['data']).toHaveLength(3);
    expect(drafts()).toEqual([]);
  });

  test.each([
    [{ trajectory_groups: [] }, ['body', 'split']],
    [{ split: '', trajectory_groups: [] }, ['body', 'split']],
    [{ split: 'a\nb', trajectory_groups: [] }, ['body', 'split']],
    [{ split: 'x'.repeat(65), trajectory_groups: [] }, ['body', 'split']],
    [{ split: 'val' }, ['body', 'trajectory_groups']],
    [{ split: 'val', trajectory_groups: {} }, ['body', 'trajectory_groups']],
    [{ split: 'val', model_id: 'other', trajectory_groups: [] }, ['body', 'model_id']],
    [{ split: 'val', step: 3, trajectory_groups: [] }, ['body', 'step']],
    [
      { split: 'val', trajectory_groups: [{ trajectories: [{}, { reward: [] }] }] },
      ['body', 'trajectory_groups', 0, 'trajectories', 1, 'reward'],
    ],
    // What becomes of NaN in JSON is not taken for the default of 0.
    [
      { split: 'val', trajectory_groups: [{ trajectories: [{}, { reward: null }] }] },
      ['body', 'trajectory_groups', 0, 'trajectories', 1, 'reward'],
    ],
  ])('%j is 422 at %j', async (body, loc) => {
    const { id } = await createModel(plane, 'void');
    const response = await plane.post(logPath(id), body);
    expect(response.status).toBe(422);
    expect(await response.json()).toMatchObject({ detail: [{ loc: loc.map(String) }] });
  });
});

describe('uploads', () => {
  const head = (path: string, more: string) =>
    `POST ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key-default\r\nContent-Type: application/json\r\n${more}\r\n\r\n`;
  /** Sends pieces with pauses; resolves with the answer, or after `cutMs` without one. */
  const send = (pieces: string[], pauseMs: number, cutMs: number | null = null) =>
    new Promise<string>((resolve, reject) => {
      const socket = connect(plane.port, '127.0.0.1');
      let received = '';
      socket.on('data', (chunk) => (received += chunk.toString()));
      socket.on('error', reject);
      socket.on('close', () => resolve(received));
      const next = () => {
        const piece = pieces.shift();
        if (piece !== undefined) socket.write(piece);
        if (pieces.length > 0) setTimeout(next, pauseMs);
        else if (cutMs !== null) setTimeout(() => socket.destroy(), cutMs);
      };
      next();
    });

  test('may take longer than the time for a request', async () => {
    const { id } = await createModel(plane, 'slow');
    const body = JSON.stringify({ split: 'val', trajectory_groups: [group([1])] });
    const part = Math.ceil(body.length / 6);
    const pieces = Array.from({ length: 6 }, (_, i) => body.slice(i * part, (i + 1) * part));
    const answer = await send(
      [head(logPath(id), `Content-Length: ${body.length}\r\nConnection: close`), ...pieces],
      500,
    );
    expect(answer).toMatch(/^HTTP\/1.1 200 /);
  }, 30_000);

  test('other requests may not', async () => {
    const answer = await send([head('/v1/preview/models', 'Content-Length: 100'), '{'], 100);
    expect(answer).toMatch(/^HTTP\/1.1 408 /);
  }, 30_000);

  test('a sender that leaves in the middle leaves nothing', async () => {
    const { id } = await createModel(plane, 'leaving');
    for (let i = 0; i < 20; i++) {
      await send(
        [head(logPath(id), 'Content-Length: 1000'), '{"split":"val","trajectory_groups":['.slice(0, 2 * i)],
        5,
        5 * (i % 4),
      );
    }
    await expect.poll(drafts).toEqual([]);
    expect((await plane.json(logPath(id)))['data']).toEqual([]);
  }, 30_000);

  test('of one entity are bounded, and keep no other out', async () => {
    const { id } = await createModel(plane, 'crowded');
    const made = await plane.ok('/v1/preview/artifacts', { project: 'p', name: 'crowded' });
    const artifact = `/v1/preview/artifacts/${String(made['id'])}`;
    await plane.call(`${artifact}/files/train.jsonl`, { method: 'PUT', body: 'x'.repeat(1000) });
    const { url } = await plane.ok(`${artifact}/commit`, {});
    const open = Array.from({ length: 32 }, () => {
      const socket = connect(plane.port, '127.0.0.1');
      socket.write(`${head(logPath(id), 'Content-Length: 100')}{`);
      return socket;
    });
    await expect.poll(() => drafts().length).toBe(32);
    const body = { split: 'val', trajectory_groups: [] };
    const refused = await plane.post(logPath(id), body);
    expect(refused.status).toBe(503);
    expect(refused.headers.get('retry-after')).toBe('1');
    const sft = { model_id: id, training_data_url: url };
    for (let i = 0; i < 3; i++) expect((await plane.post('/v1/preview/sft-training-jobs', sft)).status).toBe(503);
    // The data of a job that was not let in are not opened.
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(openArtifacts()).toEqual([]);
    const model = { project: 'p', name: 'quiet', base_model: BASE };
    const theirs = await plane.post('/v1/preview/models', model, plane.as('rivals'));
    const { id: other } = (await theirs.json()) as { id: string };
    expect((await plane.post(logPath(other), body, plane.as('rivals'))).status).toBe(200);
    for (const socket of open) socket.destroy();
    await expect.poll(drafts).toEqual([]);
    expect((await plane.post(logPath(id), body)).status).toBe(200);
  }, 30_000);

  test('too large by its length, or as it comes, is 413', async () => {
    const { id } = await createModel(plane, 'large');
    const answer = await send(
      [head(logPath(id), `Content-Length: ${MAX_BODY + 1}\r\nConnection: close`), '{'],
      50,
      2000,
    );
    expect(answer).toMatch(/^HTTP\/1.1 413 /);
    const stream = new ReadableStream({
      pull(controller) {
        controller.enqueue(new Uint8Array(2 ** 20).fill(0x20));
      },
    });
    const response = await plane.call(logPath(id), {
      method: 'POST',
      body: stream,
      headers: { 'content-type': 'application/json' },
      duplex: 'half',
    } as RequestInit);
    expect(response.status).toBe(413);
    await expect.poll(drafts).toEqual([]);
  }, 30_000);

  test('a body of many groups streams, one byte at a time too', async () => {
    const { id } = await createModel(plane, 'many');
    const body = JSON.stringify({
      trajectory_groups: Array.from({ length: 300 }, (_, i) => group([i, 0])),
      split: 'val',
    });
    expect(await plane.ok(logPath(id), JSON.parse(body))).toMatchObject({ num_groups: 300, num_trajectories: 600 });
    const small = JSON.stringify({
      split: 'v',
      trajectory_groups: [{ trajectories: [{ reward: -1.5e-3 }] }, { trajectories: [] }],
    });
    const chunks = [...small].map((char) => `1\r\n${char}\r\n`).join('');
    const answer = await send(
      [head(logPath(id), 'Transfer-Encoding: chunked\r\nConnection: close'), `${chunks}0\r\n\r\n`],
      5,
    );
    expect(answer).toMatch(/^HTTP\/1.1 200 /);
    expect(answer).toContain('"v/reward":-0.0015');
  }, 60_000);
});

test('what is stored is compressed', async () => {
  const { readFileSync } = await import('node:fs');
  const folder = join(plane.dataDir, 'blobs', 'trajectories');
  const read = (name: string) => gunzipSync(readFileSync(join(folder, name, 'content.jsonl.gz'))).toString();
  // A job without groups stores nothing but the compressed emptiness.
  const lines = readdirSync(folder).flatMap((name) => read(name).split('\n').filter(Boolean));
  expect(lines.length).toBeGreaterThan(0);
  for (const line of lines)
    expect(Array.isArray((JSON.parse(line) as { trajectories: unknown }).trajectories)).toBe(true);
});
