import { afterEach, describe, expect, it } from 'vitest';
import type { SequenceRequest } from '../../../src/control/engine/protocol.ts';
import { Driver, options, request, VOCABULARY } from './drive.ts';
import { expectedOutputs } from './fake-native.mjs';

let driver: Driver;
afterEach(() => driver.close());

/** The same prompt for every id. */
function same(id: number, length: number, changes: Partial<SequenceRequest> = {}): SequenceRequest {
  return { ...request(1, length), id, ...changes };
}

async function cachedOf(requests: SequenceRequest[]): Promise<number[]> {
  await driver.complete(requests);
  for (const each of requests) expect(driver.of(each.id)).toMatchObject(expectedOutputs(each, VOCABULARY));
  return requests.map(({ id }) => driver.cached.get(id) as number);
}

/** Tokens that the engine computed. */
function countFed(): () => number {
  let fed = 0;
  const step = driver.engine.step.bind(driver.engine);
  driver.engine.step = (plan) => {
    fed += plan.tokens.length;
    return step(plan);
  };
  return () => fed;
}

describe('a prompt that was computed before', () => {
  it('is found again in full pages, with the same outputs, but for the last token', async () => {
    driver = new Driver(options());
    expect(await cachedOf([same(1, 50)])).toEqual([0]);
    expect(await cachedOf([same(2, 50)])).toEqual([48]);
    expect(await cachedOf([same(3, 100)])).toEqual([48]);
    // 48 tokens are three full pages: of the last one a token must be computed.
    expect(await cachedOf([same(4, 48)])).toEqual([32]);
    expect(await cachedOf([same(5, 16), same(6, 17), same(7, 7)])).toEqual([0, 16, 0]);
    expect(driver.stats).toMatchObject({ prefixCacheQueries: 288, prefixCacheHits: 144, pagesUsed: 0 });
  });

  it('is found up to the first difference', async () => {
    driver = new Driver(options());
    const other = same(2, 80);
    other.promptIds[40] = 999;
    expect(await cachedOf([same(1, 80)])).toEqual([0]);
    expect(await cachedOf([other])).toEqual([32]);
    // Pages of the same tokens behind another beginning are other pages.
    const late = same(3, 80);
    late.promptIds[0] = 999;
    expect(await cachedOf([late])).toEqual([0]);
  });

  it('is found with the answer to it: the next turn of a conversation', async () => {
    driver = new Driver(options());
    const first = same(1, 30, { sampling: { ...request(1, 1).sampling, maxTokens: 40 } });
    expect(await cachedOf([first])).toEqual([0]);
    const { tokens } = driver.of(1);
    const promptIds = Int32Array.from([...first.promptIds, ...tokens, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    // 69 tokens were fed, the last output was not: four full pages.
    expect(await cachedOf([{ ...same(2, 1), promptIds }])).toEqual([64]);
  });

  it.each<[string, Partial<SequenceRequest>]>([
    ['tenant', { tenant: 'b' }],
    ['cache salt', { cacheSalt: 'pepper' }],
    ['empty cache salt', { cacheSalt: '' }],
    ['adapter version', { adapter: { version: 'sha256:1', directory: '/a' } }],
  ])('is not found with another %s', async (_, changes) => {
    driver = new Driver(options());
    expect(await cachedOf([same(1, 100)])).toEqual([0]);
    expect(await cachedOf([same(2, 100, changes)])).toEqual([0]);
    expect(await cachedOf([same(3, 100, changes)])).toEqual([96]);
    expect(await cachedOf([same(4, 100)])).toEqual([96]);
  });

  it('is not found where the cache is off', async () => {
    driver = new Driver(options({ enablePrefixCaching: false }));
    const fed = countFed();
    expect(await cachedOf([same(1, 100)])).toEqual([0]);
    expect(await cachedOf([same(2, 100)])).toEqual([0]);
    expect(fed()).toBe(2 * (100 + 9));
    expect(driver.stats).toMatchObject({ prefixCacheQueries: 0, prefixCacheHits: 0 });
  });

  it('is not found after a reset, not even by parts of what ran meanwhile', async () => {
    driver = new Driver(options({ maxBatchTokens: 16 }));
    await cachedOf([same(1, 100)]);
    driver.loop.resetPrefixCache();
    expect(await cachedOf([same(2, 100)])).toEqual([0]);
    driver.onOutput = ({ id }) => {
      if (id === 3 && driver.of(3).tokens.length === 20) driver.loop.resetPrefixCache();
    };
    const sampling = { ...request(1, 1).sampling, maxTokens: 60 };
    expect(await cachedOf([same(3, 100, { sampling })])).toEqual([96]);
    expect(await cachedOf([same(4, 100)])).toEqual([0]);
    expect(await cachedOf([same(5, 100)])).toEqual([96]);
    // What the third computed behind the reset goes on from what was before it.
    const answered = (id: number, count: number) => {
      const promptIds = Int32Array.from([...same(3, 100).promptIds, ...driver.of(3).tokens.slice(0, count)]);
      return { ...same(id, 1), promptIds };
    };
    expect(await cachedOf([answered(6, 15)])).toEqual([96]);
    expect(await cachedOf([answered(7, 60)])).toEqual([112]);
  });

  it('is evicted by need, the longest unused first', async () => {
    driver = new Driver(options({ pages: 16 }));
    // Each leaves five full pages; the pool holds three such and one page.
    for (const id of [1, 2, 3]) await cachedOf([request(id, 80)]);
    await cachedOf([{ ...request(1, 80), id: 11 }]);
    expect(driver.cached.get(11)).toBe(64);
    await cachedOf([request(4, 80)]);
    expect(await cachedOf([{ ...request(1, 80), id: 12 }])).toEqual([64]);
    expect(await cachedOf([{ ...request(2, 80), id: 13 }])).toEqual([0]);
  });
});

describe('sequences of one prompt at the same time', () => {
  it('let the first one compute it', async () => {
    driver = new Driver(options({ maxSequences: 16 }));
    const fed = countFed();
    const choices = Array.from({ length: 8 }, (_, choice) =>
      same(choice + 1, 100, { sampling: { ...request(1, 1).sampling, choice } }),
    );
    expect(await cachedOf(choices)).toEqual([0, ...Array<number>(7).fill(96)]);
    // Nine tokens of every answer are fed, and four of each prompt.
    expect(fed()).toBe(100 + 7 * 4 + 8 * 9);
  });

  it('do not hold up others', async () => {
    driver = new Driver(options({ maxBatchTokens: 112 }));
    await cachedOf([same(1, 100), same(2, 100), same(3, 100), request(4, 10), request(5, 10)]);
    expect(driver.started).toEqual([1, 4, 5, 2, 3]);
  });

  it('go on when the first one is aborted', async () => {
    driver = new Driver(options({ maxBatchTokens: 24 }), {
      onStep: (step) => (step === 3 ? driver.loop.abort([1]) : undefined),
    });
    driver.loop.submit([same(1, 100)]);
    // Three steps have computed 72 tokens: the last page is not full and must not be found.
    expect(await cachedOf([same(2, 100), same(3, 100)])).toEqual([64, 96]);
  });

  it('wait for an answer that has the next block of their prompt', async () => {
    driver = new Driver(options());
    const first = same(1, 30, { sampling: { ...request(1, 1).sampling, maxTokens: 100 } });
    const { tokens } = expectedOutputs(first, VOCABULARY);
    const promptIds = Int32Array.from([...first.promptIds, ...tokens.slice(0, 90)]);
    driver.onOutput = ({ id }) => {
      if (id === 1 && driver.of(1).tokens.length === 50) driver.loop.submit([{ ...same(2, 1), promptIds }]);
    };
    await driver.complete([first]);
    await driver.complete([]);
    await cachedOf([same(3, 30)]);
    expect(driver.of(2)).toMatchObject(expectedOutputs({ ...same(2, 1), promptIds }, VOCABULARY));
    expect(driver.cached.get(2)).toBeGreaterThanOrEqual(64);
  });
});

describe('a preempted sequence', () => {
  it('finds its own pages again and reports what it found at first', async () => {
    driver = new Driver(options({ pages: 14, maxModelLen: 160 }));
    const fed = countFed();
    const requests = [1, 2, 3].map((id) => request(id, 14, { maxTokens: 80 }));
    expect(await cachedOf(requests)).toEqual([0, 0, 0]);
    expect(driver.stats.preemptions).toBeGreaterThan(0);
    const needed = 3 * (14 + 79);
    expect(fed()).toBeLessThan(needed + driver.stats.preemptions * 60);
  });
});

describe('prompt scores', () => {
  const scored = (id: number, length: number, changes: Partial<SequenceRequest> = {}) =>
    same(id, length, { promptLogprobs: 2, ...changes });

  function expectScores(each: SequenceRequest): void {
    const expected = [...each.promptIds].slice(1).map((token, index) => ({
      position: index + 1,
      logprob: -token / 8,
      rank: index + 2,
      top: [token, token + 1],
    }));
    expect(driver.of(each.id).scores).toEqual(expected);
  }

  it('come once for each token but the first, before the first output, whatever is cached', async () => {
    driver = new Driver(options({ maxBatchTokens: 24 }));
    await cachedOf([same(1, 100)]);
    driver.onOutput = ({ id, tokens }) => {
      if (id === 2 && tokens.length > 0) expect(driver.of(2).scores).toHaveLength(99);
    };
    const requests = [scored(2, 100), scored(3, 1), scored(4, 64)];
    expect(await cachedOf(requests)).toEqual([0, 0, 0]);
    for (const each of requests) expectScores(each);
    expect(driver.of(1).scores).toEqual([]);
    // It stores what it computes.
    const fresh = { ...request(9, 60), promptLogprobs: 0 };
    await cachedOf([fresh]);
    expect(await cachedOf([{ ...request(9, 60), id: 10 }])).toEqual([48]);
  });

  it('are not repeated after preemptions, in the middle of the prompt or behind it', async () => {
    driver = new Driver(options({ pages: 16, maxModelLen: 160, maxBatchTokens: 40 }));
    const requests = [1, 2, 3, 4].map((id) => ({ ...request(id, 40, { maxTokens: 90 }), promptLogprobs: 2 }));
    await cachedOf(requests);
    expect(driver.stats.preemptions).toBeGreaterThan(1);
    for (const each of requests) expectScores(each);
  });

  it('go on where an engine that has crashed left off', async () => {
    driver = new Driver(options({ maxBatchTokens: 24 }));
    await cachedOf([scored(1, 100, { promptScored: 60 }), scored(2, 50, { promptScored: 50 })]);
    expect(driver.of(1).scores.map(({ position }) => position)).toEqual(Array.from({ length: 40 }, (_, i) => 60 + i));
    expect(driver.of(2).scores).toEqual([]);
  });

  it.each([-2, 21, 0.5, NaN])('of %d alternatives are refused', async (promptLogprobs) => {
    driver = new Driver(options());
    await driver.complete([same(1, 20, { promptLogprobs })]);
    expect(driver.of(1)).toMatchObject({ finish: 'error', error: expect.stringContaining('promptLogprobs') });
  });
});

describe('a tenant that loses its floor while another one is let in', () => {
  it('fails no step, whenever it happens', async () => {
    for (let reading = 1; reading <= 60; reading++) {
      let now = 0;
      let readings = -Infinity;
      const clock = () => (++readings >= reading ? 600_001 : now);
      driver = new Driver(options({ pages: 100, maxModelLen: 1600, maxBatchTokens: 1600, now: clock }));
      await driver.complete([{ ...request(1, 81, { maxTokens: 1 }), tenant: 'soon idle' }]);
      now = 60_000;
      await driver.complete([{ ...request(2, 641, { maxTokens: 1 }), tenant: 'large' }]);
      // The last instant of the first one's ten minutes. 78 pages are free for others, and 74 a moment later: the large floor has grown.
      now = 600_000;
      driver.onOutput = ({ id, tokens }) => {
        if (id !== 3 || tokens.length === 0 || readings >= 0) return;
        readings = 0;
        driver.loop.submit([late]);
      };
      const running = { ...request(3, 5, { maxTokens: 12 }), tenant: 'runs' };
      const late = { ...request(4, 1199, { maxTokens: 1 }), tenant: 'comes' };
      driver.loop.submit([running]);
      await driver.settled([running, late]);
      await driver.close();
    }
  });
});

describe('a flood of one tenant', () => {
  it("leaves the other one's prompt in the cache", async () => {
    driver = new Driver(options({ pages: 64 }));
    await cachedOf([same(1, 200)]);
    const flood = Array.from({ length: 60 }, (_, index) => ({ ...request(100 + index, 150), tenant: 'b' }));
    await cachedOf(flood);
    // Its floor is a quarter of the pool: 16 pages, of which it used 13.
    expect(await cachedOf([same(2, 200)])).toEqual([192]);
  });
});
