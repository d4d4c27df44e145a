import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it } from 'vitest';
import { EngineUnavailableError, QueueFullError, type EngineState } from '../../../src/control/engine/client.ts';
import { SERVE } from '../../../src/control/grammar/compile.ts';
import type { SubmitRequest } from '../../../src/control/engine/ledger.ts';
import type { EngineSupervisor } from '../../../src/control/engine/supervisor.ts';
import { TrainerLostError } from '../../../src/control/engine/training.ts';
import { writeAdapter } from '../../fixtures/adapters.ts';
import { VOCABULARY } from '../../unit/scheduler/drive.ts';
import { expectedOutputs } from '../../unit/scheduler/fake-native.mjs';
import { config, FAKE_ENTRY, submission, submit, supervise, until } from './harness.ts';

const SLOW = 'step-ms=10';
const open: EngineSupervisor[] = [];

function start(...args: Parameters<typeof supervise>): EngineSupervisor {
  const supervisor = supervise(...args);
  open.push(supervisor);
  return supervisor;
}

afterEach(async () => {
  await Promise.all(open.splice(0).map((supervisor) => supervisor.close()));
});

const FACTOR = { layer: 0, module: 'q' as const, rank: 1, a: new Float32Array(8), b: new Float32Array(8) };
const ROW = { tokens: Int32Array.of(1), segments: Int32Array.of(0, 1, -1, 0), targets: Int32Array.of(-1) };

const alone = (request: SubmitRequest) => expectedOutputs(request, VOCABULARY, 512);

/** A dead process whose parent has not asked for its exit code (state Z on Linux) is not alive. */
function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return process.platform !== 'linux' || !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

function kill(supervisor: EngineSupervisor): void {
  process.kill(supervisor.pid as number, 'SIGKILL');
}

describe('serving', () => {
  it('takes requests before the engine is ready and answers them', async () => {
    const loading: number[] = [];
    const supervisor = start({ config: config(), onLoading: (done) => loading.push(done) });
    expect(supervisor.state).toBe('starting');
    const requests = [submission(1, 30), submission(2, 5), submission(3, 100)];
    const receivers = submit(supervisor, requests);
    expect(supervisor.stats().waiting).toBe(3);
    await Promise.all(receivers.map(({ ended }) => ended));
    receivers.forEach((receiver, index) => expect(receiver).toMatchObject(alone(requests[index] as SubmitRequest)));
    expect(supervisor.state).toBe('ready');
    expect(supervisor.info).toMatchObject({ isa: 'fake', weightBytes: 1000, pages: 200, pageBytes: 1024 });
    expect(loading).toEqual([1000]);
    await until(() => supervisor.stats().pagesUsed === 0);
    expect(supervisor.stats()).toMatchObject({ running: 0, waiting: 0, promptTokens: 135, generatedTokens: 30 });
  });

  it('serves many choices of one request, which share their prompt', async () => {
    const supervisor = start({ config: config() });
    const choices = [0, 1, 2, 3, 4, 5].map((choice) => submission(9, 200, { choice, logprobs: 2, maxTokens: 20 }));
    const promptIds = (choices[0] as SubmitRequest).promptIds;
    for (const choice of choices) choice.promptIds = promptIds;
    const receivers = submit(supervisor, choices);
    await Promise.all(receivers.map(({ ended }) => ended));
    receivers.forEach((receiver, index) => expect(receiver).toMatchObject(alone(choices[index] as SubmitRequest)));
    // 200 tokens are twelve full pages and a half: all but the first choice found them.
    expect(receivers.map(({ cachedTokens }) => cachedTokens)).toEqual([0, 192, 192, 192, 192, 192]);
    await until(() => supervisor.stats().pagesUsed === 0);
    expect(supervisor.stats()).toMatchObject({ prefixCacheQueries: 1200, prefixCacheHits: 960 });
    supervisor.resetPrefixCache();
    const [again] = submit(supervisor, choices.slice(0, 1));
    await again?.ended;
    expect(again?.cachedTokens).toBe(0);
  });

  it('delivers the scores of a prompt once, also over crashes', async () => {
    const supervisor = start({ config: config([SLOW], { maxBatchTokens: 16 }) });
    const request = { ...submission(4, 120, { maxTokens: 20 }), promptLogprobs: 1 };
    const [receiver] = submit(supervisor, [request]);
    for (const count of [30, 80, 119]) {
      await until(() => (receiver?.scores.length ?? 0) >= count);
      if (count < 119) kill(supervisor);
    }
    await receiver?.ended;
    expect(receiver).toMatchObject(alone(request));
    const expected = [...request.promptIds].slice(1).map((id, index) => [index + 1, -id / 8, index + 2, id]);
    expect(receiver?.scores).toEqual(expected);
  });

  it('aborts: no output afterwards, and the engine is empty', async () => {
    const supervisor = start({ config: config([SLOW]) });
    const receivers = submit(
      supervisor,
      Array.from({ length: 8 }, (_, seed) => submission(seed, 20, { maxTokens: 400 })),
    );
    await receivers[0]?.has(3);
    for (const { handle } of receivers) {
      handle.abort();
      handle.abort();
    }
    const counts = receivers.map(({ tokens }) => tokens.length);
    await until(() => supervisor.stats().pagesUsed === 0);
    expect(supervisor.stats()).toMatchObject({ running: 0, waiting: 0 });
    expect(receivers.map(({ tokens }) => tokens.length)).toEqual(counts);
    const request = submission(50, 5);
    const [next] = submit(supervisor, [request]);
    await next?.ended;
    expect(next).toMatchObject(alone(request));
  });

  it('forgets what is aborted before it was sent', async () => {
    const supervisor = start({ config: config() });
    const [first] = submit(supervisor, [submission(1, 5)]);
    first?.handle.abort();
    expect(supervisor.stats().waiting).toBe(0);
    await supervisor.ready();
    const [second] = submit(supervisor, [submission(2, 5)]);
    await second?.ended;
    expect(first?.tokens).toEqual([]);
    expect(supervisor.stats().promptTokens).toBe(5);
  });

  it('ends a request that can never run, and no other', async () => {
    const supervisor = start({ config: config() });
    const [bad, good] = submit(supervisor, [submission(1, 5, { topP: 7 }), submission(2, 5)]);
    expect(await bad?.ended).toBe('error');
    expect(bad?.error).toContain('topP');
    expect(await good?.ended).toBe('length');
    expect(supervisor.restarts).toBe(0);
  });

  it('a receiver that throws loses its own sequence only', async () => {
    const supervisor = start({ config: config() });
    supervisor.submit([submission(1, 5, { maxTokens: 400 })], () => {
      throw new Error('receiver');
    });
    const [good] = submit(supervisor, [submission(2, 5)]);
    expect(await good?.ended).toBe('length');
    await until(() => supervisor.stats().pagesUsed === 0);
    expect(supervisor.stats().generatedTokens).toBeLessThan(400);
  });
});

describe('the queue', () => {
  it('refuses a request whole when its sequences find no place', async () => {
    const supervisor = start({ config: config([SLOW]), maxWaitingRequests: 3 });
    const long = (count: number) => Array.from({ length: count }, (_, seed) => submission(seed, 5, { maxTokens: 100 }));
    const receivers = submit(supervisor, long(6));
    let error: unknown;
    try {
      submit(supervisor, long(2));
    } catch (caught) {
      error = caught;
    }
    expect(error).toBeInstanceOf(QueueFullError);
    expect((error as QueueFullError).retryAfterSeconds).toBeGreaterThanOrEqual(1);
    receivers.push(...submit(supervisor, long(1)));
    expect(() => submit(supervisor, long(1))).toThrow(QueueFullError);
    for (const { handle } of receivers.slice(1)) handle.abort();
    expect(() => submit(supervisor, long(6))).not.toThrow();
  });

  it('refuses prompt tokens beyond its bound, but never a lone request', () => {
    const supervisor = start({ config: config([SLOW]), maxWaitingTokens: 100 });
    submit(supervisor, [submission(1, 150)]);
    expect(() => submit(supervisor, [submission(2, 5)])).toThrow(QueueFullError);
  });
});

describe('a crash', () => {
  it('replays what had not streamed with the same outputs, ends the rest, and serves on', async () => {
    const supervisor = start({ config: config([SLOW], { maxSequences: 3 }) });
    const requests = Array.from({ length: 6 }, (_, seed) =>
      submission(seed, 20 + seed, { maxTokens: 25, logprobs: 0 }),
    );
    const receivers = submit(supervisor, requests);
    await Promise.all(receivers.slice(0, 3).map((receiver) => receiver.has(5)));
    receivers[1]?.handle.markStreamed();
    const pid = supervisor.pid;
    kill(supervisor);
    expect(await receivers[1]?.ended).toBe('error');
    expect(receivers[1]?.error).toBe('The engine stopped while this request was running.');
    expect(supervisor.state).toBe('restarting');
    const late = submission(77, 9);
    const [next] = submit(supervisor, [late]);
    for (const index of [0, 2, 3, 4, 5]) {
      await receivers[index]?.ended;
      expect(receivers[index]).toMatchObject(alone(requests[index] as SubmitRequest));
      expect(receivers[index]?.afterEnd).toBe(0);
    }
    await next?.ended;
    expect(next).toMatchObject(alone(late));
    expect(supervisor.pid).not.toBe(pid);
    expect(supervisor.restarts).toBe(1);
    await until(() => supervisor.stats().pagesUsed === 0);
    expect(supervisor.stats()).toMatchObject({ running: 0, waiting: 0 });
  });

  it('may happen twice to a sequence that is innocent', async () => {
    const supervisor = start({ config: config([SLOW]) });
    const request = submission(5, 40, { maxTokens: 60 });
    const [receiver] = submit(supervisor, [request]);
    for (const count of [5, 20]) {
      await receiver?.has(count);
      kill(supervisor);
    }
    await receiver?.ended;
    expect(receiver).toMatchObject(alone(request));
    expect(supervisor.restarts).toBe(2);
  });

  it('ends a request that brings the engine down each time, and serves the others', async () => {
    const supervisor = start({ config: config(['crash-on-prompt=7', SLOW], { maxSequences: 1 }) });
    const poison = submission(1, 5);
    poison.promptIds[0] = 7;
    const waiting = submission(2, 5);
    const [bad, good] = submit(supervisor, [poison, waiting]);
    expect(await bad?.ended).toBe('error');
    await good?.ended;
    expect(good).toMatchObject(alone(waiting));
    expect(supervisor.restarts).toBe(3);
    expect(supervisor.state).toBe('ready');
  });

  it('spares the neighbours of a request that brings the engine down each time', async () => {
    const supervisor = start({ config: config(['crash-on-prompt=7', SLOW], { maxSequences: 4 }) });
    const poison = submission(1, 5);
    poison.promptIds[0] = 7;
    const neighbours = [2, 3, 4].map((seed) => submission(seed, 30, { maxTokens: 20 }));
    const later = submission(5, 5);
    const [bad, ...good] = submit(supervisor, [poison, ...neighbours, later]);
    expect(await bad?.ended).toBe('error');
    await Promise.all(good.map(({ ended }) => ended));
    [...neighbours, later].forEach((request, index) => expect(good[index]).toMatchObject(alone(request)));
    expect(supervisor.restarts).toBe(3);
  });

  it('ends a request that brings the engine down before it runs, and serves the others', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'tandem-supervisor-'));
    try {
      const settings = config(['crash-on-adapter']);
      writeAdapter(folder, settings.spec, { seed: 's', rank: 1 });
      const supervisor = start({ config: settings });
      await supervisor.ready();
      const loading = supervisor.loadAdapter({ version: 'w', directory: folder });
      await expect(loading).rejects.toThrow('The engine stopped while this adapter was being loaded.');
      await until(() => supervisor.state === 'ready');
      const [first] = submit(supervisor, [submission(3, 5)]);
      await first?.ended;
      expect([first?.finish, supervisor.restarts]).toEqual(['length', 2]);
      const poison = { ...submission(1, 5), adapter: { version: 'v', directory: folder } };
      const [bad] = submit(supervisor, [poison]);
      expect(await bad?.ended).toBe('error');
      const request = submission(2, 5);
      const [good] = submit(supervisor, [request]);
      await good?.ended;
      expect(good).toMatchObject(alone(request));
      expect([supervisor.state, supervisor.restarts]).toEqual(['ready', 6]);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it('that makes suspects: one that its client gives up does not keep the others waiting', async () => {
    const supervisor = start({ config: config([SLOW], { maxSequences: 2 }) });
    const requests = [1, 2, 3].map((seed) => submission(seed, 5, { maxTokens: 40 }));
    const [first, second, third] = submit(supervisor, requests);
    for (const count of [2, 6]) {
      await Promise.all([first?.has(count), second?.has(count)]);
      kill(supervisor);
    }
    await until(() => supervisor.state === 'restarting');
    first?.handle.abort();
    await Promise.all([second?.ended, third?.ended]);
    expect(second).toMatchObject(alone(requests[1] as SubmitRequest));
    expect(third).toMatchObject(alone(requests[2] as SubmitRequest));
  });

  it('is what a step that never ends is', async () => {
    const lines: string[] = [];
    const supervisor = start({
      config: config([], { faults: ['hang-at-step=6'] }),
      stepTimeoutMs: 2000,
      log: (line) => lines.push(line),
    });
    const request = submission(1, 5, { maxTokens: 8 });
    const [receiver] = submit(supervisor, [request]);
    await receiver?.ended;
    expect(receiver).toMatchObject(alone(request));
    expect(supervisor.restarts).toBe(1);
    expect(lines[0]).toContain('has not finished a step or a slice of training for too long');
  });

  it('is what a failed step is', async () => {
    const supervisor = start({ config: config([], { faults: ['step-error-at=4'] }) });
    const request = submission(1, 5, { maxTokens: 8 });
    const [receiver] = submit(supervisor, [request]);
    // Three tokens in each life; eight need three lives.
    await receiver?.ended;
    expect(receiver).toMatchObject(alone(request));
    expect(supervisor.restarts).toBe(2);
  });

  it('five times in a row without a finished sequence is the end', async () => {
    const lines: string[] = [];
    const supervisor = start({ config: config(['crash-on-prompt=7']), log: (line) => lines.push(line) });
    const [good] = submit(supervisor, [submission(1, 5)]);
    expect(await good?.ended).toBe('length');
    const poison = submission(3, 5);
    poison.promptIds[0] = 7;
    while (supervisor.state !== 'dead') {
      const [next] = submit(supervisor, [poison]);
      expect(await next?.ended).toBe('error');
    }
    expect(supervisor.restarts).toBe(4);
    expect(lines.map((line) => /again in (\d+) ms/.exec(line)?.[1])).toEqual(['100', '200', '400', '800', undefined]);
    expect(lines.at(-1)).toContain('5 times in a row');
    expect(() => submit(supervisor, [submission(4, 5)])).toThrow(EngineUnavailableError);
  });

  it("in training is its job's to count: the engine is started again each time, and serves", async () => {
    const supervisor = start({ config: config(['crash-in-training']) });
    for (let crashes = 1; crashes <= 6; crashes++) {
      const session = await supervisor.openTrainer({ weights: { scale: 1, factors: [FACTOR] }, optimizer: null });
      await expect(session.forward(ROW, 'current')).rejects.toThrow(TrainerLostError);
      session.close();
    }
    const request = submission(1, 5);
    const [receiver] = submit(supervisor, [request]);
    await receiver?.ended;
    expect(receiver).toMatchObject(alone(request));
    expect([supervisor.state, supervisor.restarts]).toEqual(['ready', 6]);
  });

  it('is what a slice of training that never ends is; one call may take as long as it wants', async () => {
    const lines: string[] = [];
    for (const [told, ending] of [
      ['hang-in-training', TrainerLostError],
      ['slices=60', null],
    ] as const) {
      const supervisor = start({ config: config([told]), stepTimeoutMs: 2000, log: (line) => lines.push(line) });
      const session = await supervisor.openTrainer({ weights: { scale: 1, factors: [FACTOR] }, optimizer: null });
      const scored = session.forward(ROW, 'current');
      if (ending) await expect(scored).rejects.toThrow(ending);
      else await scored;
      const killed = lines.splice(0).filter((line) => line.includes('for too long'));
      expect(killed.length).toBe(ending ? 1 : 0);
      await supervisor.close();
    }
  }, 60_000);

  it('is not what a model that loads for long is, however long somebody waits', async () => {
    const supervisor = start({ config: config(['load-ms=3500']), stepTimeoutMs: 2000 });
    const request = submission(1, 5);
    const [receiver] = submit(supervisor, [request]);
    await receiver?.ended;
    expect(receiver).toMatchObject(alone(request));
    expect(supervisor.restarts).toBe(0);
  });

  it('is what a model is that loaded before and does not now; it is tried again', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'tandem-supervisor-'));
    const file = join(folder, 'file');
    const lines: string[] = [];
    const supervisor = start({ config: config([`load-fails-beside=${file}`]), log: (line) => lines.push(line) });
    try {
      await supervisor.ready();
      writeFileSync(file, '');
      const request = submission(1, 5);
      kill(supervisor);
      await until(() => lines.some((line) => line.includes('could not start: it lies beside')));
      const [receiver] = submit(supervisor, [request]);
      rmSync(file);
      await receiver?.ended;
      expect(receiver).toMatchObject(alone(request));
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it('while the model loads counts too; ready() rejects at the end', async () => {
    const states: EngineState[] = [];
    const supervisor = start({ config: config(['load-crashes']), onStateChange: (state) => states.push(state) });
    const [receiver] = submit(supervisor, [submission(1, 5)]);
    const compiling = supervisor.compileGrammar('a', { source: { kind: 'json_object' }, options: SERVE });
    const loading = supervisor.loadAdapter({ version: 'v', directory: '/v' });
    for (const asked of [compiling, loading]) asked.catch(() => {});
    await expect(supervisor.ready()).rejects.toThrow('SIGKILL');
    for (const asked of [compiling, loading]) await expect(asked).rejects.toThrow(EngineUnavailableError);
    expect(await receiver?.ended).toBe('error');
    expect([supervisor.state, ...states]).toEqual(['dead', 'dead']);
  });
});

describe('a model that cannot be loaded', () => {
  it('rejects ready() with the reason at once', async () => {
    const supervisor = start({ config: config(['load-fails=tensor x is missing']) });
    const [receiver] = submit(supervisor, [submission(1, 5)]);
    await expect(supervisor.ready()).rejects.toThrow('tensor x is missing');
    expect(await receiver?.ended).toBe('error');
    expect(receiver?.error).toBe('The engine could not start.');
    expect([supervisor.state, supervisor.restarts]).toEqual(['dead', 0]);
  });

  it.each([
    ['too little KV memory', { kvCacheBytes: 31 * 1024 }, /--kv-cache-memory.*--max-model-len 512/],
    ['fewer batch tokens than sequences', { maxSequences: 65 }, /--max-num-batched-tokens/],
    ['no chunks and a small batch', { enableChunkedPrefill: false }, /--max-model-len \(512\)/],
    ['an unknown fault', { faults: ['nonsense=1'] }, /nonsense/],
  ])('%s', async (_, changes, message) => {
    await expect(start({ config: config([], changes) }).ready()).rejects.toThrow(message);
  });
});

describe('the end', () => {
  it('drain finishes what runs and refuses what comes', async () => {
    const supervisor = start({ config: config([SLOW]) });
    const request = submission(1, 5, { maxTokens: 30 });
    const [receiver] = submit(supervisor, [request]);
    await receiver?.has(2);
    const pid = supervisor.pid as number;
    const drained = supervisor.drain(30_000);
    expect(() => submit(supervisor, [submission(2, 5)])).toThrow(EngineUnavailableError);
    expect(supervisor.state).toBe('draining');
    await drained;
    expect(receiver).toMatchObject(alone(request));
    expect(alive(pid)).toBe(false);
    expect(supervisor.state).toBe('dead');
  });

  it('drain survives a crash on the way', async () => {
    const supervisor = start({ config: config([SLOW]) });
    const request = submission(1, 5, { maxTokens: 30 });
    const [receiver] = submit(supervisor, [request]);
    await receiver?.has(2);
    const drained = supervisor.drain(30_000);
    kill(supervisor);
    await drained;
    expect(receiver).toMatchObject(alone(request));
  });

  it('drain waits no longer than for the last client that leaves', async () => {
    const supervisor = start({ config: config([SLOW]) });
    const [receiver] = submit(supervisor, [submission(1, 5, { maxTokens: 500 })]);
    await receiver?.has(2);
    // Longer than the test has.
    const drained = supervisor.drain(600_000);
    // No engine is there to say that nothing is left.
    kill(supervisor);
    await until(() => supervisor.pid === undefined);
    receiver?.handle.abort();
    await drained;
    expect(supervisor.state).toBe('dead');
  });

  it('drain ends what has not finished in its time', async () => {
    const supervisor = start({ config: config([SLOW]) });
    const [receiver] = submit(supervisor, [submission(1, 5, { maxTokens: 500 })]);
    await receiver?.has(2);
    const pid = supervisor.pid as number;
    await supervisor.drain(20);
    expect(receiver).toMatchObject({ finish: 'error', error: 'The server is shutting down.' });
    expect(alive(pid)).toBe(false);
  });

  it('close kills at once, also while the model loads', async () => {
    const supervisor = supervise({ config: config() });
    const pid = supervisor.pid as number;
    const [receiver] = submit(supervisor, [submission(1, 5)]);
    await supervisor.close();
    expect(alive(pid)).toBe(false);
    expect(await receiver?.ended).toBe('error');
    await expect(supervisor.ready()).rejects.toThrow(EngineUnavailableError);
  });

  it.each(['SIGKILL', 'SIGTERM'] as const)('of the parent by %s ends the engine process', async (signal) => {
    const script = fileURLToPath(new URL('./lonely-parent.mjs', import.meta.url));
    const request = {
      promptIds: [1, 2, 3],
      sampling: { ...submission(1, 3, { maxTokens: 500 }).sampling, seed: 0, stopIds: [] },
    };
    const argument = JSON.stringify({ config: config([SLOW]), entry: FAKE_ENTRY, request });
    const parent = spawn(process.execPath, [script, argument], { stdio: ['ignore', 'pipe', 'inherit'] });
    const [line] = (await once(createInterface(parent.stdout), 'line')) as [string];
    const pid = Number(/^running (\d+)$/.exec(line)?.[1]);
    expect(alive(pid)).toBe(true);
    parent.kill(signal);
    await until(() => !alive(pid));
  });
});
