/** A trainer's state crosses the process border in pieces: none is large, and together they are the state. */
import { createHash } from 'node:crypto';
import { expect, test } from 'vitest';
import {
  joined,
  openSession,
  type TrainerAnswer,
  type TrainerWork,
} from '../../../src/control/engine/trainer-messages.ts';
import type { TrainerState } from '../../../src/control/engine/training.ts';

const MEBIBYTE = 2 ** 20;

/** Factors of very different sizes, up to two mebibytes with their moments. */
function stateOf(steps: number | null): TrainerState {
  const sizes = [4, 100_000, 7, 180_000, 1, 1, 30_000, 30_000, 30_000, 2];
  const fill = (length: number, from: number) => Float32Array.from({ length }, (_, at) => from + (at % 97));
  const factors = sizes.map((size, layer) => ({
    layer,
    module: 'q' as const,
    rank: 1,
    a: fill(size, layer),
    b: fill(3, -layer),
  }));
  const moments = factors.map(({ a, b }) => ({
    a: { m: fill(a.length, 1), v: fill(a.length, 2) },
    b: { m: fill(b.length, 3), v: fill(b.length, 4) },
  }));
  return { weights: { scale: 2, factors }, optimizer: steps === null ? null : { steps, moments } };
}

const bytesOf = (part: TrainerState) =>
  part.weights.factors.reduce((sum, { a, b }) => sum + 3 * (a.byteLength + b.byteLength), 0);

/** Everything of a state, cheap to compare. */
function digest(state: TrainerState | null): string {
  if (!state) return 'nothing';
  const { weights, optimizer } = state;
  const hash = createHash('sha256').update(JSON.stringify([weights.scale, optimizer?.steps ?? null]));
  for (const { layer, module, rank, a, b } of weights.factors)
    hash.update(`${layer} ${module} ${rank}`).update(a).update(b);
  for (const { a, b } of optimizer?.moments ?? []) hash.update(a.m).update(a.v).update(b.m).update(b.v);
  return hash.digest('hex');
}

/** The other side: gathers what is loaded, and gives it back. */
function trainer() {
  const parts: TrainerState[] = [];
  const answered: TrainerState[] = [];
  let begun: TrainerState | null = null;
  let closed = 0;
  const call = (work: TrainerWork): Promise<TrainerAnswer> => {
    if (work.kind === 'load') parts.push(work.part);
    if (work.kind === 'begin') begun = joined(parts);
    if (work.kind !== 'state' || !begun) return Promise.resolve(null);
    const { weights, optimizer } = begun;
    const [from, to] = [work.first, work.first + work.count];
    const part = {
      weights: { scale: weights.scale, factors: weights.factors.slice(from, to) },
      optimizer: optimizer && { steps: optimizer.steps, moments: optimizer.moments.slice(from, to) },
    };
    answered.push(part);
    return Promise.resolve(part);
  };
  return { call, close: () => closed++, parts, answered, begun: () => begun, closed: () => closed };
}

test.each([null, 7])('with %j steps it arrives, and comes back, in pieces', async (steps) => {
  const state = stateOf(steps);
  const other = trainer();
  const session = await openSession(other.call, other.close, state);
  expect(digest(other.begun())).toBe(digest(state));
  expect(other.parts.length).toBeGreaterThan(3);
  expect(digest(await session.state())).toBe(digest(state));
  for (const part of [...other.parts, ...other.answered]) {
    if (part.weights.factors.length > 1) expect(bytesOf(part)).toBeLessThanOrEqual(MEBIBYTE);
  }
  session.close();
  session.close();
  expect(other.closed()).toBe(1);
});

test('one that cannot begin is closed', async () => {
  const other = trainer();
  const call = (work: TrainerWork) =>
    work.kind === 'begin' ? Promise.reject(new Error('does not fit')) : other.call(work);
  await expect(openSession(call, other.close, stateOf(null))).rejects.toThrow('does not fit');
  expect(other.closed()).toBe(1);
});
