/** Artifacts and SFT jobs over HTTP. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readlinkSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { ArtifactRepository } from '../../../src/control/store/artifact-repository.ts';
import type { BlobStore } from '../../../src/control/store/blob-store.ts';
import type { ArtifactService } from '../../../src/control/training/artifacts/artifact-service.ts';
import { trainingDataOpener } from '../../../src/control/training/artifacts/training-data.ts';
import { createModel, finished, startPlane, trajectory, type Plane } from './plane.ts';

const SFT = '/v1/preview/sft-training-jobs';
const ARTIFACTS = '/v1/preview/artifacts';

let plane: Plane;
let files: string;
beforeAll(async () => {
  files = mkdtempSync(join(tmpdir(), 'tandem-files-'));
  plane = await startPlane({ settings: { trainingFileRoot: join(files, 'allowed') } });
}, 120_000);
afterAll(async () => {
  await plane?.end();
  rmSync(files, { recursive: true, force: true });
});

const drafts = () => readdirSync(join(plane.dataDir, 'blobs', 'drafts'));

/** Empty for a descriptor that is closed by now. */
function linkTarget(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return '';
  }
}

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

test('what is old goes while the server runs, not at its next start', async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  const old = new Date(Date.now() - 31 * 24 * 3600 * 1000).toISOString();
  const other = await startPlane({ paused: true });
  try {
    const { db } = other.database;
    const open = async (name: string) => {
      const { id } = await other.ok(ARTIFACTS, { project: 'p', name, type: 'dataset' });
      const path = `${ARTIFACTS}/${String(id)}/files/train.jsonl`;
      expect((await other.call(path, { method: 'PUT', body: `${row('a')}\n` })).status).toBe(200);
      return String(id);
    };
    const abandoned = await open('abandoned');
    await open('fresh');
    await db.updateTable('artifacts').set({ created_at: old }).where('id', '=', abandoned).execute();
    const key = { entity: 'default', operation: 'training-jobs', digest: 'd', result_id: 'r' };
    await db
      .insertInto('idempotency_keys')
      .values({ ...key, key: 'old', created_at: old })
      .execute();
    await db
      .insertInto('idempotency_keys')
      .values({ ...key, key: 'new', created_at: new Date().toISOString() })
      .execute();
    const uploads = () => readdirSync(join(other.dataDir, 'blobs', 'uploads'));
    expect(uploads()).toHaveLength(2);
    vi.advanceTimersByTime(3600 * 1000);
    await vi.waitUntil(() => uploads().length === 1, 30_000);
    const kept = await db.selectFrom('idempotency_keys').select('key').execute();
    expect(kept).toEqual([{ key: 'new' }]);
    expect((await other.call(`${ARTIFACTS}/${abandoned}`)).status).toBe(404);
  } finally {
    vi.useRealTimers();
    await other.end();
  }
});

test('a file that takes the place of another stays where the other cannot be removed', async () => {
  let refused = 0;
  const stubborn = (store: BlobStore): BlobStore => ({
    draft: (area) => store.draft(area),
    path: (key, file) => store.path(key, file),
    sweep: (referenced) => store.sweep(referenced),
    remove: () => {
      refused++;
      return Promise.reject(Object.assign(new Error('directory not empty'), { code: 'ENOTEMPTY' }));
    },
  });
  const other = await startPlane({ paused: true, blobs: stubborn });
  try {
    const { id } = await other.ok(ARTIFACTS, { project: 'p', name: 'replaced', type: 'dataset' });
    const path = `${ARTIFACTS}/${String(id)}`;
    const put = (text: string) => other.call(`${path}/files/train.jsonl`, { method: 'PUT', body: text });
    expect((await put(`${row('a')}\n`)).status).toBe(200);
    expect((await put(`${row('b')}\n`)).status).toBe(200);
    expect(await other.json(`${path}/commit`, { method: 'POST' })).toMatchObject({ version: 'v0' });
    expect(await (await other.call(`${path}/files/train.jsonl`)).text()).toBe(`${row('b')}\n`);
    expect((await other.call(path, { method: 'DELETE' })).status).toBe(200);
    expect(refused).toBe(2);
  } finally {
    await other.end();
  }
});

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
    const absent = await plane.call(`${ARTIFACTS}/${other.body.id}/files/metadata.json`);
    expect([absent.status, await absent.json()]).toMatchObject([
      404,
      { error: { message: 'There is no such file of the artifact.' } },
    ]);
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
    const left = (await plane.json(`${ARTIFACTS}?limit=100`))['data'] as { id: string }[];
    expect(left.map(({ id }) => id)).not.toContain(other.body.id);
    expect((await upload('style', { 'train.jsonl': `${row('c')}\n` })).body.version).toBe('v2');
  });

  test('a commit and a delete may be sent again', async () => {
    const open = async () => String((await plane.ok(ARTIFACTS, { project: 'p', name: 'again' }))['id']);
    const put = (id: string) =>
      plane.call(`${ARTIFACTS}/${id}/files/train.jsonl`, { method: 'PUT', body: row('again') });
    const commit = (id: string) => plane.json(`${ARTIFACTS}/${id}/commit`, { method: 'POST' });
    const remove = (id: string) => plane.json(`${ARTIFACTS}/${id}`, { method: 'DELETE' });
    const [first, second, third] = [await open(), await open(), await open()];
    for (const id of [first, second]) await put(id);
    const [version, twin] = await Promise.all([commit(first), commit(first)]);
    expect(twin).toEqual(version);
    expect(await commit(first)).toEqual(version);
    // The same content under the same name is that version, however often it is asked.
    expect(await commit(second)).toEqual(version);
    expect(await commit(second)).toEqual(version);
    for (const id of [second, first, third, first, third]) expect(await remove(id)).toEqual({ id, deleted: true });
    for (const id of [first, second, third]) {
      expect((await plane.call(`${ARTIFACTS}/${id}/commit`, { method: 'POST' })).status).toBe(404);
      expect((await put(id)).status).toBe(404);
    }
  });

  test('a file that comes while its artifact is committed is in what the version is known by', async () => {
    const begin = async (text: string) => {
      const { id } = await plane.ok(ARTIFACTS, { project: 'p', name: 'raced', type: 'dataset' });
      await put(String(id), text);
      return String(id);
    };
    const put = async (id: string, text: string) => {
      const body = `${row(text)}\n`;
      expect((await plane.call(`${ARTIFACTS}/${id}/files/train.jsonl`, { method: 'PUT', body })).status).toBe(200);
    };
    const commit = (id: string) => plane.json(`${ARTIFACTS}/${id}/commit`, { method: 'POST' });
    const id = await begin('early');
    const real = ArtifactRepository.prototype.commit;
    const spy = vi.spyOn(ArtifactRepository.prototype, 'commit').mockImplementationOnce(async function (
      this: ArtifactRepository,
      ...given
    ) {
      await put(id, 'late');
      return real.apply(this, given);
    });
    const late = await commit(id);
    spy.mockRestore();
    expect(late).toMatchObject({ version: 'v0' });
    expect(await commit(await begin('early'))).toMatchObject({ version: 'v1' });
    expect(await commit(await begin('early'))).toMatchObject({ version: 'v1' });
  });

  test('metadata that are replaced while their artifact is committed do not fail it', async () => {
    const { id } = (await plane.ok(ARTIFACTS, { project: 'p', name: 'replaced' })) as { id: string };
    const put = async (file: string, body: string) => {
      expect((await plane.call(`${ARTIFACTS}/${id}/files/${file}`, { method: 'PUT', body })).status).toBe(200);
    };
    await put('train.jsonl', row('x'));
    await put('metadata.json', '{}');
    const real = ArtifactRepository.prototype.findOwned;
    const spy = vi.spyOn(ArtifactRepository.prototype, 'findOwned').mockImplementationOnce(async function (
      this: ArtifactRepository,
      ...given
    ) {
      const found = await real.apply(this, given);
      await put('metadata.json', '{"format":"jsonl"}');
      return found;
    });
    const committed = await plane.call(`${ARTIFACTS}/${id}/commit`, { method: 'POST' });
    spy.mockRestore();
    expect([committed.status, await committed.json()]).toMatchObject([
      200,
      { version: 'v0', files: [{ name: 'metadata.json', bytes: 18 }, { name: 'train.jsonl' }] },
    ]);
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

  test('with a field that they do not have are refused by its name', async () => {
    const response = await plane.post(ARTIFACTS, { project: 'p', name: 'a', metdata: {} });
    expect([response.status, await response.json()]).toMatchObject([422, { detail: [{ loc: ['body', 'metdata'] }] }]);
  });

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

  test('take trajectories as rows', async () => {
    const { id } = await createModel(plane, 'rows-of-trajectories');
    const choice = { finish_reason: 'stop', index: 0, message: { role: 'assistant', content: 'two' }, logprobs: null };
    const line = JSON.stringify({ ...trajectory([100, 2], 1), tools: null });
    const mixed = JSON.stringify({ messages_and_choices: [{ role: 'user', content: 'one?' }, choice], reward: 0 });
    const { body } = await upload('played', { 'trajectories.jsonl': `${line}\n${mixed}\n${row('x')}` });
    const started = await start(id, body.url, { config: { batch_size: 3 } });
    expect(started.status, await started.clone().text()).toBe(200);
    const events = await finished(plane, ((await started.json()) as { id: string }).id);
    expect(events.at(-1)?.type, JSON.stringify(events)).toBe('training_ended');
    expect(events[1]?.data).toMatchObject({ num_trajectories: 3, num_dropped_trajectories: 0 });
    const open = JSON.stringify({ messages_and_choices: [choice, { role: 'user', content: 'and?' }] });
    const unended = await upload('unended', { 'train.jsonl': open });
    expect(await (await start(id, unended.body.url)).text()).toMatch(/Line 1 .*assistant/);
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

  test('say that there is no such artifact where it goes before it is read', async () => {
    const { id } = await createModel(plane, 'late');
    const { body } = await upload('going', { 'train.jsonl': row('a') });
    const real = ArtifactRepository.prototype.findVersion;
    const spy = vi.spyOn(ArtifactRepository.prototype, 'findVersion').mockImplementationOnce(async function (
      this: ArtifactRepository,
      ...given
    ) {
      const found = await real.apply(this, given);
      await plane.call(`${ARTIFACTS}/${body.id}`, { method: 'DELETE' });
      return found;
    });
    const late = await start(id, body.url);
    spy.mockRestore();
    const later = await start(id, body.url);
    expect([late.status, await late.text()]).toEqual([422, await later.text()]);
  });

  test('leave no file open that they do not come to read', async () => {
    const folder = join(files, 'allowed');
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'unread.jsonl'), row('x'));
    const options = { artifacts: {} as ArtifactService, fileRoot: folder, hosts: [], maxBytes: 1 };
    const data = await trainingDataOpener(options)(`file://${folder}/unread.jsonl`, 'default');
    const openFiles = readdirSync('/proc/self/fd').filter((fd) => linkTarget(`/proc/self/fd/${fd}`).startsWith(files));
    expect([typeof data, openFiles]).toEqual(['object', []]);
  });

  test('refuse rows by their line', async () => {
    const { id } = await createModel(plane, 'rows');
    const line = (content: unknown) => {
      const messages = [
        { role: 'user', content },
        { role: 'assistant', content: 'y' },
      ];
      return JSON.stringify({ messages });
    };
    const cases: [string, RegExp][] = [
      ['{"messages":[]}', /Line 1 .*messages/],
      [`${row('a')}\n{"messages":[{"role":"user","content":"x"}]}`, /Line 2 .*assistant/],
      [`${row('a')}\n\n{broken`, /Line 3 .*JSON/],
      ['[1]', /Line 1 .*object/],
      [line([{ type: 'image_url', image_url: { url: 'data:' } }]), /Line 1 .*messages\[0\]\.content\[0\].*'image_url'/],
      [line([{ text: 'x' }]), /Line 1 .*content\[0\] has the type ''/],
      [line([null]), /Line 1 .*content\[0\]/],
      [
        line([
          { type: 'text', text: 'x' },
          { type: 'refusal', refusal: 4 },
        ]),
        /Line 1 .*content\[1\]\.refusal/,
      ],
      ['{"messages":[{"content":"x"}]}', /Line 1 .*role/],
      ['{"messages":[{"role":"","content":"x"},{"role":"assistant","content":"y"}]}', /Line 1 .*\[0\]\.role/],
      ['{"messages":[{"role":"User","content":"x"},{"role":"assistant","content":"y"}]}', /Line 1 .*\[0\]\.role/],
      ['{"messages":[{"role":"assistant","content":5}]}', /Line 1 .*content/],
      [row('a', { tools: 'f' }), /Line 1 .*tools/],
      [`{"messages":${'['.repeat(5000)}`, /Line 1 .*deep/],
      [row('a', { notes: [], tools: [{ x: Array<number>(600_000).fill(1) }] }), /Line 1 .*more than 500000 values/],
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
    // One's own of the same name is not meant.
    await upload('private', { 'train.jsonl': row('y') });
    for (const end of ['', ':latest', ':v0'])
      expect((await start(id, `wandb-artifact:///default/p/private${end}`)).status).toBe(200);
    const foreign = await start(id, body.url);
    const none = await start(id, 'wandb-artifact:///default/p/never:v0');
    expect([foreign.status, await foreign.text()]).toEqual([none.status, await none.text()]);
    mkdirSync(join(files, 'allowed', 'sub'), { recursive: true });
    writeFileSync(join(files, 'secret.jsonl'), row('secret'));
    writeFileSync(join(files, 'allowed', 'sub', 'ok.jsonl'), row('ok'));
    symlinkSync(join(files, 'secret.jsonl'), join(files, 'allowed', 'link.jsonl'));
    execFileSync('mkfifo', [join(files, 'allowed', 'pipe')]);
    const urls = [
      'wandb-artifact:///default/p/x:v0/../../y',
      'wandb-artifact:///default/p',
      'wandb-artifact:///default/p/private:newest',
      'wandb-artifact:///default/p/private:v0x',
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
      `file://${files}/allowed/pipe`,
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
    const open = readdirSync('/proc/self/fd').map((fd) => linkTarget(`/proc/self/fd/${fd}`));
    expect(open.filter((path) => path.startsWith(files))).toEqual([]);
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
    [{ learning_rate: 1 }, ['body', 'learning_rate']],
    [{ training_data_url: undefined }, ['body', 'training_data_url']],
    [{ training_data_url: 5 }, ['body', 'training_data_url']],
  ])('%j is 422 at %j', async (more, loc) => {
    const { id } = await createModel(plane, 'urls');
    const response = await start(id, 'wandb-artifact:///default/p/x:v0', more);
    expect(response.status).toBe(422);
    expect(await response.json()).toMatchObject({ detail: [{ loc }] });
  });
});
