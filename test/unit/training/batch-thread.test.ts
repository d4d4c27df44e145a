/** The thread that prepares the rows of an RL job: the same rows as here, the same errors, and this thread serves meanwhile. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { threadedBatch } from '../../../src/control/training/batch/threaded-batch.ts';
import { TrainingFailedError, TrainingInputError } from '../../../src/control/training/errors.ts';
import { ENDLESS_ROOM } from '../../../src/control/training/pack.ts';
import { rlBatch } from '../../../src/control/training/rl-batch.ts';
import { resolveRlConfig } from '../../../src/control/training/rl-config.ts';
import type { HistoryElement, TrajectoryGroup } from '../../../src/control/training/trajectories.ts';
import type { ChatEncoder } from '../../../src/control/sessions/open-chat.ts';
import { SessionError } from '../../../src/control/sessions/session.ts';
import type { RlConfigBody } from '../../../src/schemas/rl-config.ts';
import { starterChat } from './chat-encoder.ts';
import { createModel, finished, group, startPlane, trajectory, type Plane } from './plane.ts';

const chat = await starterChat();
const folder = mkdtempSync(join(tmpdir(), 'tandem-batch-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const user = (content: string): HistoryElement => ({ role: 'user', content });

function choice(text: string, more: object = {}): HistoryElement {
  const content = chat.ids(text).map((id) => ({ token: `token_id:${id}`, logprob: -2 }));
  const message = { role: 'assistant', content: text };
  return { finish_reason: 'stop', index: 0, message, logprobs: { content }, ...more };
}

const rewarded = (elements: HistoryElement[]): TrajectoryGroup => ({
  trajectories: [1, 0, 0.3].map((reward) => ({ messages_and_choices: elements, reward })),
});

async function* stream<T>(items: readonly T[]): AsyncGenerator<T> {
  for (const item of items) yield await Promise.resolve(item);
}

let files = 0;
function stored(groups: readonly TrajectoryGroup[]): string {
  const file = join(folder, `${files++}.gz`);
  writeFileSync(file, gzipSync(groups.map((item) => `${JSON.stringify(item)}\n`).join(''), { level: 1 }));
  return file;
}

const never = new AbortController().signal;
const onThread = (
  groups: readonly TrajectoryGroup[],
  body: RlConfigBody = {},
  encoder: ChatEncoder = chat,
  signal = never,
) =>
  threadedBatch(
    { file: stored(groups), config: resolveRlConfig(body), room: ENDLESS_ROOM, seed: 's' },
    encoder,
    signal,
  );

describe('the rows', () => {
  it('are those that this thread would make, however many there are', async () => {
    const groups = Array.from({ length: 150 }, (_, i) =>
      rewarded([user(`What is ${i}?`), choice(`It is ${i}.<|im_end|>`)]),
    );
    const body = { packed_sequence_length: 64, logprob_calculation_chunk_size: 64 };
    const here = await rlBatch(stream(groups), resolveRlConfig(body), chat, 's');
    expect(here.rows.length).toBeGreaterThan(128);
    expect(await onThread(groups, body)).toEqual(here);
  });

  it('may be none', async () => {
    expect((await onThread([])).rows).toEqual([]);
  });
});

describe('errors keep their meaning', () => {
  const groups = [rewarded([user('a'), choice('yes')])];
  const broken = (error: Error): ChatEncoder => ({ ...chat, encodeChat: () => Promise.reject(error) });
  const refusal = new SessionError('bad_request', 'the template does not like it', 'messages');

  it.each<[string, Error, object]>([
    ['a chat that cannot be rendered', refusal, { field: 'trajectory_groups.0.trajectories.0.messages_and_choices' }],
    ['a server that shuts down', new SessionError('unavailable', 'shutting down'), { code: 'unavailable' }],
    ['a fault', new Error('no'), { message: 'no' }],
  ])('%s', async (_name, error, shape) => {
    const thrown: unknown = await onThread(groups, {}, broken(error)).catch((caught: unknown) => caught);
    const inline = rlBatch(stream(groups), resolveRlConfig({}), broken(error), 's');
    expect(thrown).toEqual(await inline.catch((caught: unknown) => caught));
    expect(thrown).toMatchObject(shape);
    expect(thrown instanceof TrainingInputError).toBe(error === refusal);
  });

  it('no log-probabilities', async () => {
    const silent = rewarded([user('a'), choice('yes', { logprobs: null })]);
    await expect(onThread([silent])).rejects.toThrow(TrainingFailedError);
  });

  it('a file that is damaged or gone', async () => {
    const file = stored(groups);
    writeFileSync(file, 'not compressed');
    await expect(
      threadedBatch({ file, config: resolveRlConfig({}), room: ENDLESS_ROOM, seed: 's' }, chat, never),
    ).rejects.toThrow('header');
    rmSync(file);
    const gone = threadedBatch({ file, config: resolveRlConfig({}), room: ENDLESS_ROOM, seed: 's' }, chat, never);
    await expect(gone).rejects.toMatchObject({ code: 'ENOENT' });
  });
});

it('stops where the job does', async () => {
  const abort = new AbortController();
  let asked: () => void = () => undefined;
  const rendering = new Promise<void>((resolve) => (asked = resolve));
  const stuck: ChatEncoder = { ...chat, encodeChat: () => new Promise(() => asked()) };
  const batch = onThread([rewarded([user('a'), choice('yes')])], {}, stuck, abort.signal);
  const ended = expect(batch).rejects.toThrow('stops');
  await rendering;
  abort.abort('cancelled');
  await ended;
});

/** A group of some megabytes: one turn of the event loop where it is parsed and tokenised here. */
function large(): Record<string, unknown> {
  const ids = Array.from({ length: 50_000 }, (_, i) => 5 + (i % 1000));
  const trajectories = [1, 0, 0.3].map((reward) => trajectory(ids, reward, { note: 'x'.repeat(4_000_000) }));
  return { trajectories };
}

describe('a large group', () => {
  let plane: Plane;
  beforeAll(async () => {
    plane = await startPlane();
  }, 120_000);
  afterAll(() => plane?.end());

  it('lets this thread go on with its turns', async () => {
    const groups = Array.from({ length: 2 }, large) as unknown as TrajectoryGroup[];
    const file = stored(groups);
    let longest = 0;
    const started = performance.now();
    let turn = started;
    const timer = setInterval(() => {
      longest = Math.max(longest, performance.now() - turn);
      turn = performance.now();
    }, 1);
    const { stats } = await threadedBatch(
      { file, config: resolveRlConfig({}), room: ENDLESS_ROOM, seed: 's' },
      chat,
      never,
    );
    clearInterval(timer);
    longest = Math.max(longest, performance.now() - turn);
    expect(stats).toMatchObject({ trajectories: 6, dropped: 6 });
    expect(longest).toBeLessThan((performance.now() - started) / 2);
  });

  it('is never read by the thread that serves', async () => {
    const parse = vi.spyOn(JSON, 'parse');
    try {
      const { id: modelId } = await createModel(plane, 'large');
      const trajectory_groups = [large(), group([1, 0])];
      const { id } = await plane.ok('/v1/preview/training-jobs', { model_id: modelId, trajectory_groups });
      const events = await finished(plane, String(id));
      expect(events.at(-1)?.type).toBe('training_ended');
      expect(events[0]?.data).toMatchObject({ num_trajectories: 5, num_dropped_trajectories: 3 });
      expect(parse).toHaveBeenCalled();
      expect(parse.mock.calls.filter(([text]) => text.includes('messages_and_choices'))).toEqual([]);
    } finally {
      parse.mockRestore();
    }
  });
});
