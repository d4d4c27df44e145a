/** Whose turn it is: not of those whose client has left, and of every tenant in turn; more than may wait are refused. */
import { cp, mkdtemp, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { RenderPool } from '../../../src/control/sessions/render-pool.ts';
import { STARTER } from '../../fixtures/starter.ts';

const text = (value: string) => ({ kind: 'text', text: value, addSpecialTokens: false }) as const;

const start = (maxWaiting = 100, maxWaitingChars = 1_000_000) =>
  RenderPool.start({
    modelPath: STARTER,
    maxModelLen: 1024,
    workers: 1,
    timeoutMs: 30_000,
    maxWaiting,
    maxWaitingChars,
  });

test('what was cancelled while it waited is dropped; what comes after is rendered', async () => {
  const pool = await start();
  try {
    const abort = new AbortController();
    const left = Array.from({ length: 50 }, (_, at) => pool.run('a', text(`word ${at}`), abort.signal));
    const after = pool.run('a', text('hello'));
    abort.abort();
    const settled = await Promise.allSettled(left);
    expect(settled.filter((result) => result.status === 'rejected').length).toBeGreaterThanOrEqual(49);
    expect((await after).length).toBeGreaterThan(0);
  } finally {
    await pool.close();
  }
});

test('a tenant waits for one job of another that has sent many', async () => {
  const pool = await start();
  try {
    const order: string[] = [];
    const run = (tenant: string) => pool.run(tenant, text('hello')).then(() => order.push(tenant));
    await Promise.all([...Array.from({ length: 50 }, () => run('a')), run('b')]);
    // The one that ran already, and one whose turn it was.
    expect(order.indexOf('b')).toBe(2);
  } finally {
    await pool.close();
  }
});

test('as many wait as were allowed, the next is told to try again', async () => {
  const pool = await start(3);
  try {
    // The first one is at work at once.
    const settled = await Promise.allSettled(Array.from({ length: 5 }, (_, at) => pool.run('a', text(`word ${at}`))));
    expect(settled.map(({ status }) => status)).toEqual([...Array<string>(4).fill('fulfilled'), 'rejected']);
    expect(settled[4]).toMatchObject({ reason: { code: 'queue_full', retryAfterSeconds: 1 } });
  } finally {
    await pool.close();
  }
});

test('as many characters wait as were allowed; who waits for nothing else may have more', async () => {
  const pool = await start(100, 1000);
  try {
    const run = (tenant: string, length: number) => pool.run(tenant, text('word '.repeat(length / 5)));
    // The first one is at work at once, and none of those that wait; with the fourth a tenant has more than its half.
    const jobs = [run('a', 2000), run('a', 300), run('b', 2000), run('a', 300), run('b', 5)];
    const settled = await Promise.allSettled(jobs);
    expect(settled.map(({ status }) => status)).toEqual([
      ...Array<string>(3).fill('fulfilled'),
      'rejected',
      'rejected',
    ]);
    expect(settled[3]).toMatchObject({ reason: { code: 'queue_full', retryAfterSeconds: 1 } });
    // What has been rendered waits no more.
    await Promise.all([run('b', 300), run('b', 300)]);
  } finally {
    await pool.close();
  }
});

test('one that cannot be handed to a thread is refused, and the next has its turn', async () => {
  const pool = await start();
  try {
    // No thread takes a function.
    const stuck = { ...text('hello'), addSpecialTokens: (() => false) as unknown as boolean };
    const [, refused, after] = await Promise.allSettled(
      [text('hello'), stuck, text('hello')].map((input) => pool.run('a', input)),
    );
    expect(refused).toMatchObject({ status: 'rejected', reason: { code: 'bad_request' } });
    expect(after?.status).toBe('fulfilled');
  } finally {
    await pool.close();
  }
});

test('after threads could not start any more, a prompt finds one as soon as they can', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'tandem-render-'));
  const modelPath = join(folder, 'model');
  await cp(STARTER, modelPath, { recursive: true });
  // One thread: a second might still be starting when its files go.
  const pool = await RenderPool.start({
    modelPath,
    maxModelLen: 1e8,
    workers: 1,
    timeoutMs: 1000,
    maxWaiting: 100,
    maxWaitingChars: 1_000_000,
  });
  try {
    expect((await pool.run('a', text('hello'))).length).toBeGreaterThan(0);
    await rename(modelPath, `${modelPath}-gone`);
    const long = pool.run('a', text('a word or two '.repeat(1_500_000)));
    await expect(long).rejects.toMatchObject({ code: 'bad_request' });
    await expect(pool.run('a', text('hello'))).rejects.toMatchObject({ code: 'unavailable' });
    await expect(pool.run('a', text('hello'))).rejects.toMatchObject({ code: 'unavailable' });
    await rename(`${modelPath}-gone`, modelPath);
    expect((await pool.run('a', text('hello'))).length).toBeGreaterThan(0);
  } finally {
    await pool.close();
    await rm(folder, { recursive: true });
  }
});

test('a thread that the system refuses at once costs nothing but its own jobs', async () => {
  const options = {
    modelPath: STARTER,
    maxModelLen: 1e8,
    workers: 2,
    timeoutMs: 1000,
    maxWaiting: 100,
    maxWaitingChars: 1_000_000,
  };
  const pool = await RenderPool.start(options);
  const long = () => pool.run('a', text('a word or two '.repeat(1_500_000)));
  try {
    // What no thread can be given: `new Worker` throws, as it does where there is no memory for one.
    options.modelPath = (() => STARTER) as unknown as string;
    await Promise.all([long(), long()].map((run) => expect(run).rejects.toMatchObject({ code: 'bad_request' })));
    for (let i = 0; i < 2; i++)
      await expect(pool.run('a', text('hello'))).rejects.toMatchObject({ code: 'unavailable' });
    options.modelPath = STARTER;
    expect((await pool.run('a', text('hello'))).length).toBeGreaterThan(0);
    options.modelPath = (() => STARTER) as unknown as string;
    await expect(RenderPool.start(options)).rejects.toThrow(/could not be cloned/);
  } finally {
    await pool.close();
  }
});
