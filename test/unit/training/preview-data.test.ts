/** Logs, run history, artifacts and SFT jobs over HTTP; uploads that are large, slow, broken or hostile. */
import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createModel, finished, group, startPlane, trajectory, type Plane } from './plane.ts';

const SFT = '/v1/preview/sft-training-jobs';
const ARTIFACTS = '/v1/preview/artifacts';
const MAX_BODY = 8 * 2 ** 20;

let plane: Plane;
let files: string;
beforeAll(async () => {
  files = mkdtempSync(join(tmpdir(), 'tandem-files-'));
  plane = await startPlane({
    settings: { maxTrainingBodyBytes: MAX_BODY, trainingFileRoot: join(files, 'allowed'), requestTimeoutMs: 1500 },
  });
}, 120_000);
afterAll(async () => {
  await plane?.end();
  rmSync(files, { recursive: true, force: true });
});

const logPath = (id: string) => `/v1/preview/models/${id}/log`;
const drafts = () => readdirSync(join(plane.dataDir, 'blobs', 'drafts'));

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

  test('the last log of a name wins; splits stand beside each other; filters', async () => {
    const { id } = await createModel(plane, 'twice');
    for (const [split, reward] of [
      ['train', 1],
      ['val', 2],
      ['val', 4],
    ] as const) {
      await plane.ok(logPath(id), { split, trajectory_groups: [group([reward])] });
    }
    const checkpoints = await plane.json(`/v1/preview/models/${id}/checkpoints`);
    expect(checkpoints).toMatchObject({ data: [{ metrics: { 'train/reward': 1, 'val/reward': 4 } }] });
    const count = async (query: string) => ((await plane.json(`${logPath(id)}${query}`))['data'] as unknown[]).length;
    expect(await count('?split=val')).toBe(2);
    expect(await count('?split=none')).toBe(0);
    expect(await count('?step=0')).toBe(3);
    expect(await count('?step=1')).toBe(0);
    expect(await count('?limit=2')).toBe(2);
    expect((await plane.call(`${logPath(id)}?step=x`)).status).toBe(422);
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

  test('no trajectories at all', async () => {
    const { id } = await createModel(plane, 'void');
    const logged = await plane.ok(logPath(id), { split: 'val', trajectory_groups: [] });
    expect(logged['metrics']).toEqual({ 'val/exception_rate': 0, 'val/reward_std_dev': 0 });
    const back = await plane.json(`${logPath(id)}/${String(logged['id'])}`);
    expect(back['trajectory_groups']).toEqual([]);
  });

  test('hostile names stay names', async () => {
    const { id } = await createModel(plane, 'hostile');
    const body = `{"split":"val","__proto__":{"polluted":true},"trajectory_groups":[{"trajectories":[{"reward":1,"metrics":{"__proto__":2,"constructor":3}}]}]}`;
    const response = await plane.post(logPath(id), body);
    expect(response.status).toBe(200);
    const page = await plane.json(`/v1/preview/models/${id}/checkpoints`);
    const [{ metrics } = { metrics: {} }] = page['data'] as { metrics: Record<string, number> }[];
    expect(Object.entries(metrics)).toContainEqual(['val/__proto__', 2]);
    expect(({} as Record<string, unknown>)['polluted']).toBeUndefined();
  });

  test.each([
    [{ trajectory_groups: [] }, ['body', 'split']],
    [{ split: '', trajectory_groups: [] }, ['body', 'split']],
    [{ split: 'a/b', trajectory_groups: [] }, ['body', 'split']],
    [{ split: 'x'.repeat(65), trajectory_groups: [] }, ['body', 'split']],
    [{ split: 'val' }, ['body', 'trajectory_groups']],
    [{ split: 'val', trajectory_groups: {} }, ['body', 'trajectory_groups']],
    [{ split: 'val', model_id: 'other', trajectory_groups: [] }, ['body', 'model_id']],
    [
      { split: 'val', trajectory_groups: [{ trajectories: [{ reward: null }, { reward: [] }] }] },
      ['body', 'trajectory_groups', 0, 'trajectories', 1, 'reward'],
    ],
  ])('%j is 422 at %j', async (body, loc) => {
    const { id } = await createModel(plane, 'void');
    const response = await plane.post(logPath(id), body);
    expect(response.status).toBe(422);
    expect(await response.json()).toMatchObject({ detail: [{ loc }] });
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

const row = (text: string, more: object = {}) =>
  JSON.stringify({
    messages: [
      { role: 'user', content: 'hi' },
      { role: 'assistant', content: text },
    ],
    ...more,
  });

async function upload(name: string, contents: Record<string, string>, key = 'default') {
  const headers = { ...plane.as(key), 'content-type': 'application/json' };
  const opened = await plane.call(ARTIFACTS, {
    method: 'POST',
    headers,
    body: JSON.stringify({ project: 'p', name, type: 'dataset' }),
  });
  const { id } = (await opened.json()) as { id: string };
  for (const [file, text] of Object.entries(contents)) {
    const put = await plane.call(`${ARTIFACTS}/${id}/files/${file}`, {
      method: 'PUT',
      body: text,
      headers: plane.as(key),
    });
    expect(put.status).toBe(200);
  }
  const committed = await plane.call(`${ARTIFACTS}/${id}/commit`, { method: 'POST', headers: plane.as(key) });
  return { status: committed.status, body: (await committed.json()) as { id: string; url: string; version: string } };
}

describe('artifacts', () => {
  test('files, a commit, a version and a URL', async () => {
    const first = await upload('style', {
      'train.jsonl': `${row('a')}\n`,
      'metadata.json': '{"format":"jsonl","num_trajectories":1}',
    });
    expect(first.body).toMatchObject({
      state: 'committed',
      version: 'v0',
      url: 'wandb-artifact:///default/p/style:v0',
    });
    const same = await upload('style', {
      'train.jsonl': `${row('a')}\n`,
      'metadata.json': '{"format":"jsonl","num_trajectories":1}',
    });
    expect(same.body).toEqual(first.body);
    const other = await upload('style', { 'train.jsonl': `${row('b')}\n` });
    expect(other.body.version).toBe('v1');
    const file = await plane.call(`${ARTIFACTS}/${other.body.id}/files/train.jsonl`);
    expect(await file.text()).toBe(`${row('b')}\n`);
    expect(file.headers.get('content-disposition')).toBe('attachment');
    const list = await plane.json(`${ARTIFACTS}?limit=1`);
    expect(list).toMatchObject({ data: [{ id: first.body.id }], has_more: true });
    // Committed: nothing changes any more.
    const put = await plane.call(`${ARTIFACTS}/${other.body.id}/files/train.jsonl`, { method: 'PUT', body: 'x' });
    expect(put.status).toBe(409);
    // A deleted version is not given again.
    const gone = await plane.call(`${ARTIFACTS}/${other.body.id}`, { method: 'DELETE' });
    expect(gone.status).toBe(200);
    expect((await plane.call(`${ARTIFACTS}/${other.body.id}`)).status).toBe(404);
    expect((await upload('style', { 'train.jsonl': `${row('c')}\n` })).body.version).toBe('v2');
  });

  test.each(['..', '.hidden', 'a%2fb', '..%2f..%2fetc', 'a%00b', 'x'.repeat(129), '%2e%2e'])(
    'the file name %s',
    async (name) => {
      const { id } = (await plane.ok(ARTIFACTS, { project: 'p', name: 'names' })) as { id: string };
      const response = await plane.call(`${ARTIFACTS}/${id}/files/${name}`, { method: 'PUT', body: 'x' });
      expect([404, 422]).toContain(response.status);
      await plane.call(`${ARTIFACTS}/${id}`, { method: 'DELETE' });
    },
  );

  test('are refused when empty, or with broken metadata, or too large', async () => {
    expect((await upload('empty', {})).status).toBe(409);
    expect((await upload('broken', { 'metadata.json': '[1]' })).status).toBe(422);
    const { id } = (await plane.ok(ARTIFACTS, { project: 'p', name: 'big' })) as { id: string };
    const response = await plane.call(`${ARTIFACTS}/${id}/files/metadata.json`, {
      method: 'PUT',
      body: 'x'.repeat(2 ** 20 + 1),
    });
    expect(response.status).toBe(413);
    await expect.poll(drafts).toEqual([]);
  });

  test('of another entity are as unknown as none', async () => {
    const { body } = await upload('theirs', { 'train.jsonl': row('x') });
    const never = '00000000-0000-4000-8000-000000000000';
    const calls: [string, RequestInit][] = [
      ['', {}],
      ['', { method: 'DELETE' }],
      ['/files/train.jsonl', {}],
      ['/files/train.jsonl', { method: 'PUT', body: 'x' }],
      ['/commit', { method: 'POST' }],
    ];
    for (const [path, init] of calls) {
      const answers = [body.id, never].map(async (id) => {
        const response = await plane.call(`${ARTIFACTS}/${id}${path}`, { ...init, headers: plane.as('rivals') });
        return [response.status, await response.text()];
      });
      const [theirs, none] = await Promise.all(answers);
      expect(theirs?.[0], path).toBe(404);
      expect(theirs).toEqual(none);
    }
    expect((await plane.call(ARTIFACTS, { headers: plane.as('rivals') })).status).toBe(200);
    const forbidden = await plane.post(ARTIFACTS, { project: 'p', name: 'x', entity: 'rivals' });
    expect(forbidden.status).toBe(403);
  });
});

describe('SFT jobs', () => {
  const start = (id: string, url: string, more: object = {}) =>
    plane.post(SFT, { model_id: id, training_data_url: url, ...more });

  test('as the client drives them', async () => {
    const { id } = await createModel(plane, 'tuned');
    const rows = `${row('one')}\n${row('two', { tools: [{ type: 'function', function: { name: 'f' } }] })}\n\n${row('three')}`;
    const { body } = await upload('agent-sft-data-7194bdcab705', { 'train.jsonl': rows });
    const created = await start(id, body.url, { config: { batch_size: 1, learning_rate: [1e-4, 5e-5, 5e-5] } });
    expect(created.status).toBe(200);
    const job = (await created.json()) as { id: string };
    const events = await finished(plane, job.id);
    expect(
      events.map(({ type }) => type),
      JSON.stringify(events),
    ).toEqual(['training_started', 'gradient_step', 'gradient_step', 'gradient_step', 'training_ended']);
    expect(events[0]?.data['num_sequences']).toBe(3);
    const page = await plane.json(`/v1/preview/models/${id}/checkpoints?limit=1&order=desc`);
    expect(page).toMatchObject({ data: [{ step: 1 }] });
    // The other name of the file, two slashes, and the default configuration.
    const other = await upload('other', { 'trajectories.jsonl': row('x') });
    const again = await start(id, other.body.url.replace(':///', '://'), { config: null });
    expect((await finished(plane, ((await again.json()) as { id: string }).id)).at(-1)?.type).toBe('training_ended');
  });

  test('keep their data when the artifact goes', async () => {
    const { id } = await createModel(plane, 'kept');
    const { body } = await upload('fleeting', { 'train.jsonl': row('x') });
    let release = (): void => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    plane.engine_.beforeCall = () => held;
    const job = (await (await start(id, body.url)).json()) as { id: string };
    await plane.call(`${ARTIFACTS}/${body.id}`, { method: 'DELETE' });
    release();
    plane.engine_.beforeCall = () => undefined;
    expect((await finished(plane, job.id)).at(-1)?.type).toBe('training_ended');
    expect((await start(id, body.url)).status).toBe(422);
  });

  test('refuse rows by their line', async () => {
    const { id } = await createModel(plane, 'rows');
    const cases: [string, RegExp][] = [
      ['{"messages":[]}', /Line 1 .*messages/],
      [`${row('a')}\n{"messages":[{"role":"user","content":"x"}]}`, /Line 2 .*assistant/],
      [`${row('a')}\n\n{broken`, /Line 3 .*JSON/],
      ['[1]', /Line 1 .*object/],
      ['{"messages":[{"content":"x"}]}', /Line 1 .*role/],
      ['{"messages":[{"role":"assistant","content":5}]}', /Line 1 .*content/],
      [row('a', { tools: 'f' }), /Line 1 .*tools/],
      [`{"messages":${'['.repeat(5000)}`, /Line 1 .*deep/],
      ['', /no row/],
      ['\n\n', /no row/],
    ];
    for (const [index, [text, message]] of cases.entries()) {
      const { body } = await upload(`bad-${index}`, { 'train.jsonl': text });
      const response = await start(id, body.url);
      expect(response.status, text.slice(0, 50)).toBe(422);
      const { detail } = (await response.json()) as { detail: { loc: unknown; msg: string }[] };
      expect(detail[0]?.loc).toEqual(['body', 'training_data_url']);
      expect(detail[0]?.msg).toMatch(message);
    }
    const { body } = await upload('bytes', { 'train.jsonl': Buffer.from([0xff, 0xfe]).toString('latin1') });
    expect(body.version).toBe('v0');
    const { body: rates } = await upload('rates', { 'train.jsonl': `${row('a')}\n${row('b')}\n${row('c')}` });
    const short = await start(id, rates.url, { config: { batch_size: 1, learning_rate: [1e-4] } });
    expect(await short.json()).toMatchObject({ detail: [{ loc: ['body', 'config', 'learning_rate'] }] });
    expect(drafts()).toEqual([]);
  });

  test('refuse URLs that are not allowed', async () => {
    const { id } = await createModel(plane, 'urls');
    const { body } = await upload('private', { 'train.jsonl': row('x') }, 'rivals');
    const foreign = await start(id, body.url);
    const none = await start(id, 'wandb-artifact:///default/p/never:v0');
    expect([foreign.status, await foreign.text()]).toEqual([none.status, await none.text()]);
    mkdirSync(join(files, 'allowed', 'sub'), { recursive: true });
    writeFileSync(join(files, 'secret.jsonl'), row('secret'));
    writeFileSync(join(files, 'allowed', 'sub', 'ok.jsonl'), row('ok'));
    symlinkSync(join(files, 'secret.jsonl'), join(files, 'allowed', 'link.jsonl'));
    const urls = [
      'wandb-artifact:///default/p/x:v0/../../y',
      'wandb-artifact:///default/p',
      'wandb-artifact:///default/p/x:newest',
      'http://169.254.169.254/latest',
      'https://example.com/train.jsonl',
      'ftp://x/y',
      's3://bucket/key',
      'data:text/plain,x',
      'no url',
      `file://${files}/secret.jsonl`,
      `file://${files}/allowed/../secret.jsonl`,
      `file://${files}/allowed/%2e%2e/secret.jsonl`,
      `file://${files}/allowed/link.jsonl`,
      `file://${files}/allowed`,
      `file://${files}/allowed/sub`,
      'file:///dev/zero',
      'file:///etc/passwd',
      'file://otherhost/etc/passwd',
    ];
    for (const url of urls) {
      const response = await start(id, url);
      expect(response.status, url).toBe(422);
      const { detail } = (await response.json()) as { detail: { loc: unknown; msg: string }[] };
      expect(detail[0]?.loc).toEqual(['body', 'training_data_url']);
      expect(detail[0]?.msg).not.toContain(files);
    }
    expect((await start(id, `file://${files}/allowed/sub/ok.jsonl`)).status).toBe(200);
  });

  test.each([
    [{ config: { batch_size: 0 } }, ['body', 'config', 'batch_size']],
    [{ config: { batch_size: 'many' } }, ['body', 'config', 'batch_size']],
    [{ config: { learning_rate: -1 } }, ['body', 'config', 'learning_rate']],
    [{ config: { learning_rate: [] } }, ['body', 'config', 'learning_rate']],
    [{ config: { epochs: 3 } }, ['body', 'config', 'epochs']],
    [{ config: { assistant_turns: 'first' } }, ['body', 'config', 'assistant_turns']],
    [{ experimental_config: { x: 1 } }, ['body', 'experimental_config', 'x']],
    [{ training_data_url: undefined }, ['body', 'training_data_url']],
    [{ training_data_url: 5 }, ['body', 'training_data_url']],
  ])('%j is 422 at %j', async (more, loc) => {
    const { id } = await createModel(plane, 'urls');
    const response = await start(id, 'wandb-artifact:///default/p/x:v0', more);
    expect(response.status).toBe(422);
    expect(await response.json()).toMatchObject({ detail: [{ loc }] });
  });
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
