import { describe, expect, it, test, vi } from 'vitest';
import type { SequenceRequest } from '../../../src/control/engine/protocol.ts';
import { FairQueue } from '../../../src/control/scheduler/fair-queue.ts';
import { ForcedTokens } from '../../../src/control/scheduler/jumps.ts';
import { Sequence } from '../../../src/control/scheduler/sequence.ts';
import { lookUp, Speculation, type SpeculationOptions } from '../../../src/control/scheduler/speculation.ts';
import { StepTimes } from '../../../src/control/scheduler/step-times.ts';
import { Driver, options, random, request } from './drive.ts';
import { expectedOutputs } from './fake-native.mjs';

/** So few ids that what came before the same token is often right and often wrong. */
const FEW = 4;

function speculation(changes: Partial<SpeculationOptions> = {}): SpeculationOptions {
  const lookup = { promptLookupMax: 3, promptLookupMin: 1 };
  return { numSpeculativeTokens: 5, ...lookup, disableByBatchSize: 4097, measured: false, ...changes };
}

describe('looking up what came before', () => {
  const look = (tokens: number[], min = 1, max = 3, most = 4) => [...lookUp(Int32Array.from(tokens), min, max, most)];

  test('the longest run wins, then the latest', () => {
    expect(look([1, 2, 3, 4, 9, 3, 5, 9, 9, 2, 3])).toEqual([4, 9, 3, 5]);
    expect(look([3, 4, 7, 3, 5, 8, 3], 1, 3, 2)).toEqual([5, 8]);
  });
  test('no run of the least length, no proposal', () => {
    expect(look([1, 2, 3, 4])).toEqual([]);
    expect(look([7, 3, 4, 3], 2)).toEqual([]);
    expect(look([5])).toEqual([]);
    expect(look([5, 5], 1, 1, 0)).toEqual([]);
  });
  test('a text that goes round goes on so', () => {
    expect(look([1, 2, 1, 2, 1, 2], 2, 3, 5)).toEqual([1, 2, 1, 2, 1]);
    expect(look([8, 8], 1, 3, 3)).toEqual([8, 8, 8]);
  });
});

/** Prompts and outputs over few ids, stop ids and limits among them. */
function randomRequests(count: number, seed: number): SequenceRequest[] {
  const draw = random(seed);
  return Array.from({ length: count }, (_, index) => {
    const stopIds = draw(4) === 0 ? Int32Array.of(draw(FEW)) : new Int32Array(0);
    const changes = { maxTokens: 1 + draw(90), stopIds, minTokens: stopIds.length * draw(3), seed: BigInt(draw(1000)) };
    const made = request(index + 1, 1 + draw(60), {
      ...changes,
      minTokens: Math.min(changes.minTokens, changes.maxTokens),
    });
    return { ...made, promptIds: made.promptIds.map((id) => id % FEW) };
  });
}

describe('proposals', () => {
  const roomy = { maxSequences: 12, maxBatchTokens: 128, pages: 400 };
  const tight = { maxSequences: 6, maxBatchTokens: 40, pages: 18 };
  const single = { maxSequences: 1, maxBatchTokens: 9, pages: 16 };

  it.each([
    { name: 'roomy', sizes: roomy, preempts: false },
    { name: 'tight', sizes: tight, preempts: true },
    { name: 'one at a time', sizes: single, preempts: false },
  ])('$name: every output as without them', async ({ sizes, preempts }) => {
    const scheduler = options({ ...sizes, vocabSize: FEW, speculation: speculation() });
    const driver = new Driver(scheduler);
    const requests = randomRequests(60, sizes.pages);
    const charge = vi.spyOn(FairQueue.prototype, 'charge');
    await driver.run(requests);
    const charged = charge.mock.calls.reduce((sum, [, tokens]) => sum + tokens, 0);
    charge.mockRestore();
    for (const each of requests) {
      const expected = expectedOutputs(each, FEW, scheduler.maxModelLen);
      const { finish, tokens } = driver.of(each.id);
      expect([finish, tokens], `sequence ${each.id}`).toEqual([expected.finish, expected.tokens]);
    }
    const { speculation: counted, generatedTokens, pagesUsed, preemptions } = driver.stats;
    expect(pagesUsed).toBe(0);
    expect(preemptions > 0).toBe(preempts);
    expect(generatedTokens).toBe(requests.reduce((sum, { id }) => sum + driver.of(id).tokens.length, 0));
    expect(counted?.acceptedTokens).toBeGreaterThan(0);
    expect(counted?.draftTokens).toBeGreaterThan(counted?.acceptedTokens ?? 0);
    expect(counted?.acceptedPerPosition.reduce((sum, count) => sum + count)).toBe(counted?.acceptedTokens);
    expect(driver.engine.maxStepTokens).toBeLessThanOrEqual(scheduler.maxBatchTokens);
    // Tenants are served what came true, and nothing of what did not.
    const fed = requests.reduce((sum, { id, promptIds }) => {
      const last = promptIds.length + driver.of(id).tokens.length - 1;
      return sum + last - (driver.cached.get(id) ?? 0);
    }, 0);
    if (!preempts) expect(charged).toBe(fed);
  });

  it('stores no refused token in the prefix cache', async () => {
    const driver = new Driver(options({ vocabSize: FEW, speculation: speculation() }));
    const [first] = randomRequests(1, 5) as [SequenceRequest];
    const long = { ...first, sampling: { ...first.sampling, stopIds: new Int32Array(0), minTokens: 0, maxTokens: 90 } };
    await driver.complete([long]);
    // The fake checks that pages hold the tokens that they are said to hold.
    const told = Int32Array.from([...long.promptIds, ...driver.of(long.id).tokens]);
    const next = { ...long, id: 2, promptIds: told };
    await driver.complete([next]);
    expect(driver.cached.get(2)).toBe(Math.floor((told.length - 1) / 16) * 16);
    expect(driver.of(2).tokens).toEqual(expectedOutputs(next, FEW, 256).tokens);
    await driver.close();
  });

  it('come only where they may: not at that size, not before advice, not past the end', async () => {
    const driver = new Driver(options({ vocabSize: FEW, speculation: speculation({ disableByBatchSize: 1 }) }));
    await driver.run(randomRequests(5, 1));
    expect(driver.stats.speculation?.drafts).toBe(0);
    const proposer = new Speculation(speculation(), 64);
    const sequence = running([1, 1, 1], 6);
    expect(proposer.draftsFor([sequence], 64).get(sequence)?.length).toBe(2);
    expect(proposer.draftsFor([sequence], 2).get(sequence)?.length).toBe(1);
    sequence.adviser = {};
    expect(proposer.draftsFor([sequence], 64).size).toBe(0);
    sequence.adviser = null;
    sequence.forced = new ForcedTokens(2);
    expect(proposer.draftsFor([sequence], 64).size).toBe(0);
  });
});

/** A sequence that misses its last token only. */
function running(tokens: number[], maxLength = 200): Sequence {
  const given = request(1, 1, { maxTokens: maxLength - tokens.length });
  const sequence = new Sequence({ ...given, promptIds: Int32Array.from(tokens) }, 256);
  sequence.planned = tokens.length - 1;
  return sequence;
}

describe('the measured gain', () => {
  const told = [1, 2, 3, 1, 2, 3, 1];

  it('decides: tokens per time with proposals against those without', () => {
    const proposer = new Speculation(speculation({ measured: true, numSpeculativeTokens: 4 }), 64);
    const sequence = running(told);
    const proposes = () => proposer.draftsFor([sequence], 64).size > 0;
    expect(proposes(), 'nothing has been measured').toBe(false);
    proposer.noteStep(1, 100);
    expect(proposes(), 'steps with proposals are tried once').toBe(true);
    proposer.noteStep(5, 150);
    sequence.acceptance = 0.9;
    expect(proposes()).toBe(true);
    sequence.acceptance = 0.1;
    expect(proposes()).toBe(false);
    sequence.acceptance = 0.9;
    for (let step = 0; step < 60; step++) proposer.noteStep(5, 1000);
    expect(proposes(), 'steps with proposals have become slow').toBe(false);
  });

  it('counts the first step of a size whole, and later ones by a tenth', () => {
    const times = new StepTimes(8);
    expect(times.of(3)).toBeNull();
    times.add(3, 100);
    expect(times.of(3)).toBe(100);
    times.add(3, 200);
    expect(times.of(3)).toBeCloseTo(110);
    expect(times.of(4)).toBeNull();
  });

  it('is looked at again from time to time', () => {
    const proposer = new Speculation(speculation({ measured: true }), 64);
    const sequence = running(told);
    proposer.noteStep(1, 100);
    proposer.noteStep(6, 110);
    const asked = Array.from({ length: 400 }, () => proposer.draftsFor([sequence], 64).size > 0);
    expect(asked.filter((proposes) => !proposes).length).toBe(6);
    sequence.acceptance = 0;
    const refused = Array.from({ length: 400 }, () => proposer.draftsFor([sequence], 64).size > 0);
    expect(refused.filter((proposes) => proposes).length).toBe(6);
  });

  it('follows what comes true', () => {
    const proposer = new Speculation(speculation(), 64);
    const sequence = running(told);
    for (let step = 0; step < 40; step++) proposer.noteDraft(sequence, 5, 5);
    expect(sequence.acceptance).toBeGreaterThan(0.99);
    for (let step = 0; step < 40; step++) proposer.noteDraft(sequence, 5, 0);
    expect(sequence.acceptance).toBeLessThan(0.01);
    // What stands behind the first wrong one was never tried.
    const other = running(told);
    for (let step = 0; step < 60; step++) new Speculation(speculation(), 64).noteDraft(other, 5, 2);
    expect(other.acceptance).toBeCloseTo(2 / 3, 3);
    expect(proposer.stats).toMatchObject({ drafts: 80, draftTokens: 400, acceptedTokens: 200 });
    expect(proposer.stats.acceptedPerPosition).toEqual([40, 40, 40, 40, 40]);
  });
});

test('options that cannot work are refused by name', () => {
  const refuse = (changes: Partial<SpeculationOptions>) => () => new Speculation(speculation(changes), 64);
  expect(refuse({ numSpeculativeTokens: 16 })).toThrow('num_speculative_tokens');
  expect(refuse({ numSpeculativeTokens: 0 })).toThrow('num_speculative_tokens');
  expect(refuse({ promptLookupMax: 0.5 })).toThrow('prompt_lookup_max');
  expect(refuse({ promptLookupMin: 4 })).toThrow('prompt_lookup_min');
  expect(refuse({ disableByBatchSize: 0 })).toThrow('disable_by_batch_size');
});
