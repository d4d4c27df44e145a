/** Text that a grammar forces: appended without being sampled, whatever happens to its sequence meanwhile. */
import { describe, expect, it } from 'vitest';
import type { ConstraintOptions, NativeConstraint, NativeProgram } from '../../../src/control/engine/native-grammar.ts';
import type { SamplingSpec } from '../../../src/control/engine/native.ts';
import type { SequenceOutput, SequenceRequest } from '../../../src/control/engine/protocol.ts';
import type { SchedulerOptions } from '../../../src/control/scheduler/admission.ts';
import type { Speller } from '../../../src/control/scheduler/jumps.ts';
import { Driver, options, request, VOCABULARY } from './drive.ts';
import { nextToken } from './fake-native.mjs';

const SPELT = 500;
/** Texts begin with two forced bytes; each third token forces up to five more. */
const forcedAfter = (token: number) =>
  token % 3 === 0 ? Array.from({ length: 1 + (token % 5) }, (_, i) => (token % 40) + i) : [];

/** What is still forced after these outputs. */
function pendingAfter(outputs: readonly number[]): number[] {
  let pending = [1, 2];
  for (const token of outputs) pending = pending[0] === token - SPELT ? pending.slice(1) : forcedAfter(token);
  // What was forced may force more, as in a real grammar.
  return pending.length > 0 || outputs.length === 0 ? pending : [];
}

class FakeConstraint implements NativeConstraint {
  outputs: number[] = [];
  readonly options: ConstraintOptions;
  constructor(options: ConstraintOptions) {
    this.options = options;
  }
  take(tokens: ArrayLike<number>): void {
    this.outputs = Array.from(tokens);
  }
  forced(): Uint8Array {
    return Uint8Array.from(this.options.jumps ? pendingAfter(this.outputs) : []);
  }
  jump(tokens: Int32Array): number {
    const pending = pendingAfter(this.outputs);
    expect([...tokens]).toEqual(pending.slice(0, tokens.length).map((byte) => SPELT + byte));
    const count = Math.min(tokens.length, this.options.maxTokens - 1 - this.outputs.length);
    this.outputs.push(...tokens.subarray(0, count));
    return count;
  }
}

const program: NativeProgram = {
  micros: 1,
  heldBytes: () => 1,
  worn: () => false,
  constrain: (options) => new FakeConstraint(options),
};
const speller: Speller = { spell: (_, text) => Int32Array.from(text, (byte) => SPELT + byte) };

/** The whole output of a sequence that runs alone, and where deliveries end in it. */
function expected({ promptIds, sampling }: SequenceRequest): { tokens: number[]; ends: number[] } {
  const tokens: number[] = [];
  const ends: number[] = [];
  while (tokens.length < sampling.maxTokens) {
    const room = () => sampling.maxTokens - 1 - tokens.length;
    for (let forced = pendingAfter(tokens); forced.length > 0 && room() > 0; forced = pendingAfter(tokens))
      tokens.push(...forced.slice(0, room()).map((byte) => SPELT + byte));
    tokens.push(nextToken([...promptIds, ...tokens], tokens.length, sampling, VOCABULARY));
    ends.push(tokens.length);
  }
  return { tokens, ends };
}

function constrained(id: number, promptLength: number, changes: Partial<SamplingSpec> = {}): SequenceRequest {
  return { ...request(id, promptLength, { maxTokens: 40, ...changes }), jumpForward: true };
}

async function run(requests: SequenceRequest[], changes: Partial<SchedulerOptions> = {}) {
  const driver = new Driver(options({ speller, ...changes }));
  const outputs = new Map<number, SequenceOutput[]>();
  driver.onOutput = (output) => outputs.set(output.id, [...(outputs.get(output.id) ?? []), output]);
  for (const each of requests) expect(driver.scheduler.submit(each, program)).toBeNull();
  await driver.run([]);
  return { driver, outputs };
}

function checkScores(outputs: SequenceOutput[], alternatives: number): void {
  for (const { tokens, logprobs, ranks, top } of outputs) {
    expect([...logprobs]).toEqual([...tokens].map((token) => -token / 8));
    expect(ranks.length).toBe(tokens.length);
    expect(top.map(({ ids }) => [...ids])).toEqual(
      [...tokens].map((token) => Array.from({ length: alternatives }, (_, i) => token + i)),
    );
  }
}

describe('forced text', () => {
  it('comes with the token after it, in fewer steps, and is counted', async () => {
    const one = constrained(1, 20);
    const { driver, outputs } = await run([one]);
    const { tokens, ends } = expected(one);
    expect(driver.of(1)).toMatchObject({ tokens, finish: 'length' });
    expect(outputs.get(1)!.map((output) => output.tokens.length)).toEqual(
      ends.map((end, i) => end - (ends[i - 1] ?? 0)),
    );
    expect(driver.engine.steps).toBe(ends.length);
    expect(ends.length).toBeLessThan(tokens.length - 5);
    expect(driver.stats.generatedTokens).toBe(tokens.length);
  });

  for (const [name, changes] of Object.entries({
    alone: { maxSequences: 1 },
    'in one batch': {},
    'in chunks of three tokens': { maxBatchTokens: 3, maxSequences: 3 },
    'in chunks of eight tokens': { maxBatchTokens: 8 },
    'without a prefix cache': { enablePrefixCaching: false },
    'with too few pages': { pages: 12, maxModelLen: 100, maxBatchTokens: 30 },
  })) {
    it(`has its scores, ${name}`, async () => {
      const requests = [16, 17, 32, 5, 40, 16].map((length, id) =>
        constrained(id + 1, length, { logprobs: 2, seed: BigInt(id) }),
      );
      const { driver, outputs } = await run(requests, changes);
      for (const each of requests) {
        expect(driver.of(each.id).tokens).toEqual(expected(each).tokens);
        checkScores(outputs.get(each.id)!, 2);
      }
      if ('pages' in changes) expect(driver.stats.preemptions).toBeGreaterThan(1);
    });
  }

  it('leaves the last token to the model, even where what is forced never ends', async () => {
    const endless: NativeConstraint = { take() {}, forced: () => Uint8Array.of(7, 8, 9), jump: ({ length }) => length };
    const driver = new Driver(options({ speller }));
    const one = constrained(1, 20, { maxTokens: 11 });
    expect(driver.scheduler.submit(one, { ...program, constrain: () => endless })).toBeNull();
    await driver.run([]);
    const { tokens, finish } = driver.of(1);
    expect(finish).toBe('length');
    expect(tokens.slice(0, 10)).toEqual([7, 8, 9, 7, 8, 9, 7, 8, 9, 7].map((byte) => SPELT + byte));
    expect(tokens.length).toBe(11);
  });

  it('has its scores where the prompt and more are found in the prefix cache', async () => {
    const driver = new Driver(options({ speller }));
    const same = [1, 2, 3].map((id) => ({ ...constrained(7, 32, { logprobs: 0 }), id }));
    const all: SequenceOutput[] = [];
    driver.onOutput = (output) => all.push(output);
    for (const each of same) {
      driver.scheduler.submit(each, program);
      await driver.complete([]);
      await driver.settled([each]);
    }
    await driver.close();
    for (const each of same) expect(driver.of(each.id).tokens).toEqual(expected(each).tokens);
    checkScores(all, 0);
    expect(driver.cached.get(2)).toBe(16);
  });

  it('scores the prompt too, where both are asked for', async () => {
    const one = { ...constrained(1, 20, { logprobs: 1 }), promptLogprobs: 1 };
    const { driver, outputs } = await run([one], { maxBatchTokens: 7, maxSequences: 2 });
    expect(driver.of(1).scores.map(({ position }) => position)).toEqual(Array.from({ length: 19 }, (_, i) => i + 1));
    expect(driver.of(1).tokens).toEqual(expected(one).tokens);
    checkScores(
      outputs.get(1)!.filter(({ tokens }) => tokens.length > 0),
      1,
    );
  });

  it('comes again the same after a crash, wherever it came', async () => {
    const one = constrained(1, 20);
    const { tokens, ends } = expected(one);
    for (const end of [0, ...ends.slice(0, -1)]) {
      const { driver } = await run([{ ...one, resumeIds: Int32Array.from(tokens.slice(0, end)) }]);
      expect(driver.of(1).tokens).toEqual(tokens.slice(end));
    }
  });

  it('leaves a stopping or forbidden token to be sampled', async () => {
    const stops = await run([constrained(1, 20, { stopIds: Int32Array.of(SPELT + 2), minTokens: 3 })]);
    expect(stops.outputs.get(1)![0]!.tokens.length).toBe(2);
    const banned = await run([constrained(1, 20, { badWords: [Int32Array.of(SPELT + 1, SPELT + 2)] })]);
    expect(banned.outputs.get(1)![0]!.tokens.length).toBe(2);
    const other = await run([constrained(1, 20, { badWords: [Int32Array.of(SPELT + 9, SPELT + 2)] })]);
    expect(other.outputs.get(1)![0]!.tokens.length).toBe(3);
    const allowed = await run([constrained(1, 20, { allowedIds: Int32Array.of(SPELT + 1) })]);
    expect(allowed.outputs.get(1)![0]!.tokens.length).toBe(2);
  });

  it('is spelt after the last eight tokens of the output, and none of the prompt', async () => {
    const before: number[][] = [];
    const noting: Speller = {
      spell: (last, text) => {
        before.push([...last]);
        return speller.spell(last, text);
      },
    };
    const { driver } = await run([constrained(1, 20)], { speller: noting });
    const { tokens } = driver.of(1);
    expect(before[0]).toEqual([]);
    expect(Math.max(...before.map(({ length }) => length))).toBe(8);
    const ends = tokens.map((_, end) => tokens.slice(Math.max(0, end - 8), end));
    for (const last of before) expect(ends).toContainEqual(last);
  });

  it('is sampled where jumping is off', async () => {
    const off = [
      run([{ ...constrained(1, 20), jumpForward: false }]),
      run([constrained(1, 20, { logprobsMode: 'processed' })]),
      run([constrained(1, 20)], { speller: null }),
      run([constrained(1, 20)], {
        adviser: { open: () => ({}), advise: (asked) => asked.map(() => ({ control: null })) },
      }),
    ];
    for (const { driver } of await Promise.all(off)) {
      expect(driver.engine.steps).toBe(40);
      expect(driver.of(1).tokens.length).toBe(40);
    }
  });

  it('is dropped with a client that leaves, and every page returns', async () => {
    const driver = new Driver(options({ speller, maxBatchTokens: 4, maxSequences: 4 }));
    const requests = [1, 2, 3].map((id) => constrained(id, 18, { logprobs: 1 }));
    for (const each of requests) driver.scheduler.submit(each, program);
    let seen = 0;
    driver.onOutput = ({ id }) => {
      if (id === 2 && ++seen === 2) driver.loop.abort([2]);
    };
    await driver.run([]);
    expect(driver.of(2).finish).toBeNull();
    for (const id of [1, 3]) expect(driver.of(id).tokens).toEqual(expected(requests[id - 1]!).tokens);
    expect(driver.stats).toMatchObject({ running: 0, waiting: 0, pagesUsed: 0 });
  });
});
