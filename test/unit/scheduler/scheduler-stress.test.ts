import { describe, expect, it } from 'vitest';
import type { SequenceRequest } from '../../../src/control/engine/protocol.ts';
import type { SchedulerOptions } from '../../../src/control/scheduler/admission.ts';
import { Driver, options, random, request, VOCABULARY } from './drive.ts';
import { expectedOutputs } from './fake-native.mjs';

interface Storm {
  name: string;
  requests: number;
  maxPrompt: number;
  maxTokens: number;
  /** One step in so many aborts a sequence. */
  abortEvery: number;
  scheduler: Partial<SchedulerOptions>;
  /** The pool is so small that sequences must be preempted. */
  preempts: boolean;
}

/** Random lengths, some stop ids, some minimum lengths. */
function randomRequest(id: number, draw: (below: number) => number, { maxPrompt, maxTokens }: Storm): SequenceRequest {
  const stopIds = Int32Array.from({ length: draw(3) * 10 }, () => draw(VOCABULARY));
  const most = 1 + draw(maxTokens);
  const seed = BigInt(draw(1000));
  return request(id, 1 + draw(maxPrompt), { maxTokens: most, stopIds, minTokens: draw(4), seed, choice: draw(4) });
}

/** Submits in bursts from within the run and aborts at random moments. */
async function run(storm: Storm, queues: boolean) {
  const draw = random(storm.requests);
  const requests = Array.from({ length: storm.requests }, (_, index) => randomRequest(index + 1, draw, storm));
  const aborted = new Set<number>();
  let next = 0;
  const driver: Driver = new Driver(options(storm.scheduler), {
    queues,
    onStep: () => {
      const burst = draw(3) === 0 ? draw(30) : 0;
      driver.loop.submit(requests.slice(next, next + burst));
      next = Math.min(requests.length, next + burst);
      if (next === requests.length) driver.loop.drain();
      const victim = 1 + draw(Math.max(1, next));
      if (draw(storm.abortEvery) === 0 && driver.of(victim).finish === null) {
        aborted.add(victim);
        driver.loop.abort([victim]);
      }
    },
  });
  driver.loop.submit(requests.slice(0, 20));
  next = 20;
  const running = driver.loop.run();
  // When everything submitted so far has ended, the loop sleeps and no step submits more.
  const feeder = setInterval(() => {
    driver.loop.submit(requests.slice(next, next + 10));
    next = Math.min(requests.length, next + 10);
    if (next === requests.length) driver.loop.drain();
  }, 5);
  await running;
  clearInterval(feeder);
  return { driver, requests, aborted };
}

describe('a storm of requests', () => {
  const tight = { maxSequences: 12, maxBatchTokens: 40, pages: 13, maxModelLen: 140 };
  const unchunked = { ...tight, maxBatchTokens: 140, enableChunkedPrefill: false };
  const single = { maxSequences: 1, maxBatchTokens: 7, pages: 9, maxModelLen: 140 };
  const roomy = { maxSequences: 64, maxBatchTokens: 512, pages: 1000, maxModelLen: 140 };
  // prettier-ignore
  const storms: Storm[] = [
    { name: 'a tiny page pool', scheduler: tight, requests: 10_000, maxPrompt: 12, maxTokens: 100, abortEvery: 8, preempts: true },
    { name: 'no chunks', scheduler: unchunked, requests: 1000, maxPrompt: 20, maxTokens: 120, abortEvery: 10, preempts: true },
    { name: 'one at a time', scheduler: single, requests: 300, maxPrompt: 70, maxTokens: 20, abortEvery: 30, preempts: false },
    { name: 'room for all', scheduler: roomy, requests: 2000, maxPrompt: 70, maxTokens: 20, abortEvery: 2, preempts: false },
  ];

  const modes = storms.flatMap((storm) => [false, true].map((queues) => ({ ...storm, queues })));

  it.each(modes)(
    '$name, planned ahead: $queues: none lost, every page returns, outputs as alone',
    async (storm) => {
      const schedulerOptions = options(storm.scheduler);
      const { driver, requests, aborted } = await run(storm, storm.queues);
      let finished = 0;
      for (const each of requests) {
        const got = driver.of(each.id);
        const expected = expectedOutputs(each, VOCABULARY, schedulerOptions.maxModelLen);
        if (got.finish !== null) {
          finished++;
          expect([got.finish, got.tokens], `sequence ${each.id}`).toEqual([expected.finish, expected.tokens]);
        } else {
          expect(aborted.has(each.id), `sequence ${each.id} has neither ended nor been aborted`).toBe(true);
          expect(got.tokens).toEqual(expected.tokens.slice(0, got.tokens.length));
        }
      }
      expect(finished).toBeGreaterThan(storm.requests / 2);
      expect(aborted.size).toBeGreaterThan(0);
      expect(driver.engine.rowsInVain > 0).toBe(storm.queues);
      expect(driver.engine.maxStepTokens).toBeLessThanOrEqual(schedulerOptions.maxBatchTokens);
      expect(driver.engine.maxOpen).toBeLessThanOrEqual(schedulerOptions.maxSequences);
      expect(driver.stats).toMatchObject({ running: 0, waiting: 0, pagesUsed: 0 });
      expect(driver.stats.preemptions > 100, `${driver.stats.preemptions} preemptions`).toBe(storm.preempts);
      const order = [...driver.started];
      expect(order).toEqual([...order].sort((a, b) => a - b));
    },
    120_000,
  );
});
