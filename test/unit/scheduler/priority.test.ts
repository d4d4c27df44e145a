import { describe, expect, it } from 'vitest';
import type { SequenceRequest } from '../../../src/control/engine/protocol.ts';
import type { SchedulerOptions } from '../../../src/control/scheduler/admission.ts';
import { compressed, FairQueue } from '../../../src/control/scheduler/fair-queue.ts';
import { PagePool } from '../../../src/control/scheduler/pages.ts';
import { enoughVictims, pageVictim, victimsFor } from '../../../src/control/scheduler/preemption.ts';
import { Sequence } from '../../../src/control/scheduler/sequence.ts';
import { Driver, options, random, request, VOCABULARY } from './drive.ts';
import { expectedOutputs } from './fake-native.mjs';

function prioritized(id: number, length: number, priority: number, maxTokens = 10): SequenceRequest {
  return { ...request(id, length, { maxTokens }), priority };
}

const byPriority = (changes: Partial<SchedulerOptions> = {}) => options({ schedulingPolicy: 'priority', ...changes });

/** Submits `later` once sequence 1 has `after` tokens; both must get what they get alone. */
async function overtake(
  schedulerOptions: SchedulerOptions,
  first: SequenceRequest[],
  later: SequenceRequest[],
  after = 5,
) {
  const driver = new Driver(schedulerOptions);
  driver.onOutput = ({ id }) => {
    if (id === 1 && driver.of(1).tokens.length === after) driver.loop.submit(later);
  };
  await driver.complete(first);
  await driver.settled(later);
  await driver.close();
  for (const each of [...first, ...later]) {
    expect(driver.of(each.id)).toMatchObject(expectedOutputs(each, VOCABULARY, schedulerOptions.maxModelLen));
  }
  return driver;
}

describe('a later request of higher priority', () => {
  it('takes the only slot and ends first; the other one loses nothing', async () => {
    for (const enablePrefixCaching of [true, false]) {
      const one = byPriority({ maxSequences: 1, enablePrefixCaching });
      const driver = await overtake(one, [prioritized(1, 40, 1, 80)], [prioritized(2, 40, 0, 20)]);
      expect(driver.finished).toEqual([2, 1]);
      expect(driver.stats.preemptions).toBe(1);
    }
  });

  it('takes pages where slots are free', async () => {
    const driver = await overtake(
      byPriority({ pages: 12 }),
      [prioritized(1, 60, 5, 100)],
      [prioritized(2, 90, -5, 40)],
    );
    expect(driver.finished).toEqual([2, 1]);
    expect(driver.stats.preemptions).toBe(1);
  });

  it('takes nothing while there is room for both', async () => {
    const driver = await overtake(byPriority(), [prioritized(1, 40, 1, 80)], [prioritized(2, 40, 0, 20)]);
    expect(driver.stats.preemptions).toBe(0);
  });

  it('takes nothing where all that may give way would not make enough room', async () => {
    const first = [prioritized(1, 60, 0, 100), prioritized(2, 20, 9, 20)];
    const driver = await overtake(byPriority({ pages: 14 }), first, [prioritized(3, 150, 5, 40)]);
    expect(driver.finished).toEqual([2, 1, 3]);
    expect(driver.stats.preemptions).toBe(0);
  });

  it('takes the place of the lowest, and of the youngest among equals', async () => {
    const running = [
      prioritized(1, 5, 3, 60),
      prioritized(2, 5, 7, 60),
      prioritized(3, 5, 7, 60),
      prioritized(4, 5, 6, 60),
    ];
    const driver = await overtake(byPriority({ maxSequences: 4 }), running, [prioritized(5, 5, 0, 60)]);
    expect(driver.stats.preemptions).toBe(1);
    expect(driver.finished.at(-1)).toBe(3);
  });

  it('means nothing under FCFS', async () => {
    const driver = await overtake(
      options({ maxSequences: 1 }),
      [prioritized(1, 40, 1, 80)],
      [prioritized(2, 40, 0, 20)],
    );
    expect(driver.finished).toEqual([1, 2]);
    expect(driver.stats.preemptions).toBe(0);
  });
});

describe('the queue by priority', () => {
  it('is in order of priority, then of arrival, for any number', async () => {
    const priorities = [5, 0, -3, 5, 2 ** 63, 0, -(2 ** 63), 1e6, 1_000_001];
    const driver = new Driver(byPriority({ maxSequences: 1, now: () => 0 }));
    await driver.run(priorities.map((priority, index) => prioritized(index, 5, priority)));
    expect(driver.started).toEqual([6, 2, 1, 5, 0, 3, 7, 8, 4]);
  });

  it('lets nothing starve: who waits gains on those who come later', async () => {
    for (const tenant of ['a', 'b']) {
      let nowMs = 0;
      const driver: Driver = new Driver(byPriority({ maxSequences: 1, priorityAgeingSeconds: 10, now: () => nowMs }));
      let next = 1;
      driver.onOutput = ({ finish }) => {
        nowMs += 1000;
        // There is always one of the highest priority waiting.
        if (finish !== null && next < 400) driver.loop.submit([prioritized(next++, 5, -100, 5)]);
      };
      driver.loop.submit([prioritized(next++, 5, -100, 5), prioritized(next++, 5, -100, 5)]);
      await driver.complete([{ ...prioritized(1000, 5, 100, 5), tenant }]);
      // Its distance is 2 * log2(101) = 13.3 units of 10 s, in which others come every 5 s.
      const passed = driver.finished.indexOf(1000);
      expect(passed).toBeGreaterThan(15);
      expect(passed).toBeLessThan(40);
      next = 400;
      await driver.close();
    }
  });

  it('refuses a priority that is not a number, and settings that make no sense', async () => {
    const driver = new Driver(byPriority());
    await driver.run([prioritized(1, 5, NaN), prioritized(2, 5, Infinity)]);
    for (const id of [1, 2]) expect(driver.of(id).error).toContain('priority');
    expect(() => new Driver(options({ schedulingPolicy: 'lifo' as 'fcfs' }))).toThrow('--scheduling-policy');
    expect(() => new Driver(byPriority({ priorityAgeingSeconds: 0 }))).toThrow('priorityAgeingSeconds');
  });
});

describe('tenants', () => {
  it.each(['fcfs', 'priority'] as const)('share under %s: one request need not wait for a flood', async (policy) => {
    const driver = new Driver(options({ schedulingPolicy: policy, maxSequences: 2 }));
    const flood = Array.from({ length: 50 }, (_, index) => request(index + 1, 20, { maxTokens: 40 }));
    const quiet = { ...request(100, 20, { maxTokens: 10 }), tenant: 'b' };
    driver.onOutput = ({ id }) => {
      if (id === 1 && driver.of(1).tokens.length === 5) driver.loop.submit([quiet]);
    };
    await driver.complete(flood);
    await driver.close();
    expect(driver.finished[0]).toBe(100);
    // It took the place of one of two.
    expect(driver.stats.preemptions).toBe(1);
    for (const each of [...flood, quiet]) expect(driver.of(each.id)).toMatchObject(expectedOutputs(each, VOCABULARY));
  });

  it('get the same service when both flood, whatever the size of their requests', async () => {
    const driver = new Driver(options({ maxSequences: 4, enablePrefixCaching: false }));
    const large = Array.from({ length: 20 }, (_, index) => ({
      ...request(1 + index, 60, { maxTokens: 40 }),
      tenant: 'l',
    }));
    const small = Array.from({ length: 100 }, (_, index) => ({
      ...request(101 + index, 10, { maxTokens: 10 }),
      tenant: 's',
    }));
    const served = { l: 0, s: 0 };
    driver.onOutput = ({ id, finish }) => {
      if (finish !== null && driver.of(200).finish === null) served[id > 100 ? 's' : 'l'] += id > 100 ? 19 : 99;
    };
    await driver.run([...large, ...small]);
    expect(served.l / served.s).toBeGreaterThan(0.7);
    expect(served.l / served.s).toBeLessThan(1.4);
  });

  it('alone have the order of arrival exactly', async () => {
    const draw = random(8);
    const driver = new Driver(options({ maxSequences: 3 }));
    const requests = Array.from({ length: 200 }, (_, index) =>
      request(index + 1, 1 + draw(60), { maxTokens: 1 + draw(20) }),
    );
    await driver.run(requests);
    expect(driver.started).toEqual(requests.map(({ id }) => id));
  });

  it('more than slots do not displace each other', async () => {
    const driver = new Driver(options({ maxSequences: 2 }));
    const requests = Array.from({ length: 30 }, (_, index) => ({ ...request(index + 1, 10), tenant: `t${index}` }));
    await driver.run(requests);
    expect(driver.stats.preemptions).toBe(0);
    expect(driver.finished).toHaveLength(30);
  });
});

describe('who gives way', () => {
  const queue = new FairQueue('priority', 10_000, () => 0);
  /** Runs now. */
  function begin(id: number, tenant: string, priority = 0): Sequence {
    const sequence = new Sequence({ ...request(id, 3), tenant, priority }, 256);
    Object.assign(sequence, { arrival: id, rank: compressed(priority) });
    queue.push(sequence);
    queue.takeHead(sequence);
    queue.began(sequence);
    return sequence;
  }
  function candidate(id: number, priority = 0): Sequence {
    const sequence = new Sequence({ ...request(id, 3), tenant: 'comes', priority }, 256);
    return Object.assign(sequence, { arrival: id, rank: compressed(priority) });
  }
  const idsFor = (next: Sequence, running: Sequence[]) => victimsFor(next, running, queue).map(({ id }) => id);

  it('is never whom this candidate has displaced before: they would take turns', () => {
    const running = [1, 2, 3, 4].map((id) => begin(id, 'a'));
    const next = candidate(100);
    expect(idsFor(next, running)).toEqual([4, 3, 2]);
    Object.assign(running[3]!, { displacedBy: next.id });
    Object.assign(running[2]!, { displacedBy: 99 });
    expect(idsFor(next, running)).toEqual([3, 2, 1]);
  });

  it('leaves each tenant one, those of a lower priority counted, and nobody of a higher one', () => {
    const running = [begin(11, 'b'), begin(12, 'b'), begin(13, 'b', 5), begin(14, 'c', -5), begin(15, 'c', -5)];
    expect(idsFor(candidate(100), running)).toEqual([13, 12]);
  });

  it('frees the pages that nobody else reads, eight sequences at most in one step', () => {
    const pool = new PagePool(64);
    const running = Array.from({ length: 20 }, (_, index) => begin(21 + index, 'd'));
    // Each frees the page that it would soon need.
    expect(enoughVictims(running, 3, pool)).toEqual(running.slice(0, 3));
    expect(enoughVictims(running, 0, pool)).toEqual(running.slice(0, 1));
    expect(enoughVictims(running, 15, pool)).toEqual(running.slice(0, 8));
    expect(enoughVictims(running, 21, pool)).toEqual([]);
    const [reader] = running as [Sequence];
    pool.allocate(3, reader.pages);
    expect(enoughVictims(running, 3, pool)).toEqual([reader]);
    for (const page of reader.pages.view()) pool.share(page);
    expect(enoughVictims(running, 3, pool)).toHaveLength(4);
  });

  it('for a page is the last, but first of tenants that run more than one', () => {
    const running = [begin(41, 'e'), begin(42, 'f'), begin(43, 'f'), begin(44, 'g')];
    expect(pageVictim(running, 0, queue)).toBe(2);
    expect(pageVictim(running, 2, queue)).toBe(3);
    expect(pageVictim(running, 3, queue)).toBe(3);
  });
});

describe('a storm of priorities', () => {
  it('10,000 requests, aborts and tiny memory: none lost, every page returns, outputs as alone', async () => {
    const draw = random(77);
    const requests = Array.from({ length: 10_000 }, (_, index) => {
      const made = request(index + 1, 1 + draw(40), { maxTokens: 1 + draw(60), choice: draw(3) });
      // Beginnings that others have too.
      if (draw(3) === 0) made.promptIds = request(draw(5), made.promptIds.length).promptIds;
      const promptLogprobs = draw(10) === 0 ? 1 : -1;
      return {
        ...made,
        promptLogprobs,
        priority: draw(20) - 10,
        tenant: `t${draw(4)}`,
        cacheSalt: draw(5) ? null : 's',
      };
    });
    const aborted = new Set<number>();
    let next = 100;
    // A clock that moves whenever it is read, so that no two decisions within a step see the same time.
    let clock = 0;
    const now = () => (clock += 0.3);
    const sizes = { maxSequences: 12, maxBatchTokens: 40, pages: 13, maxModelLen: 140 };
    const tiny = byPriority({ ...sizes, priorityAgeingSeconds: 0.05, now });
    const driver: Driver = new Driver(tiny, {
      onStep: () => {
        const burst = draw(4) === 0 ? draw(30) : 0;
        driver.loop.submit(requests.slice(next, (next = Math.min(requests.length, next + burst))));
        if (draw(6) > 0) return;
        const victim = 1 + draw(next);
        if (driver.of(victim).finish === null) aborted.add(victim);
        driver.loop.abort([victim]);
      },
    });
    driver.loop.submit(requests.slice(0, next));
    const running = driver.loop.run();
    while (next < requests.length) await new Promise((resolve) => setTimeout(resolve, 5));
    driver.loop.drain();
    // When idle at its end the loop checks the books of pages, slots and cache.
    await running;
    for (const each of requests) {
      const got = driver.of(each.id);
      const expected = expectedOutputs(each, VOCABULARY, 140);
      if (got.finish !== null)
        expect([got.finish, got.tokens], `sequence ${each.id}`).toEqual([expected.finish, expected.tokens]);
      else expect(aborted.has(each.id), `sequence ${each.id} has neither ended nor been aborted`).toBe(true);
      if (got.finish === null) continue;
      const scores = each.promptLogprobs < 0 ? [] : Array.from({ length: each.promptIds.length - 1 }, (_, i) => i + 1);
      expect(got.scores.map(({ position }) => position)).toEqual(scores);
    }
    expect(driver.finished.length).toBeGreaterThan(5000);
    expect(driver.stats).toMatchObject({ running: 0, waiting: 0, pagesUsed: 0 });
    expect(driver.stats.preemptions).toBeGreaterThan(100);
    expect(driver.stats.prefixCacheHits).toBeGreaterThan(300);
  }, 180_000);
});
