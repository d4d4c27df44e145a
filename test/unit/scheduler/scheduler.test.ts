import { describe, expect, it } from 'vitest';
import { Scheduler } from '../../../src/control/scheduler/scheduler.ts';
import { Driver, options, request, sampling, VOCABULARY } from './drive.ts';
import { expectedOutputs } from './fake-native.mjs';

describe('Scheduler', () => {
  it('runs one sequence to its length', async () => {
    const driver = new Driver(options());
    await driver.run([request(1, 20)]);
    expect(driver.of(1)).toMatchObject({ ...expectedOutputs(request(1, 20), VOCABULARY), finish: 'length' });
    expect(driver.stats).toMatchObject({
      running: 0,
      waiting: 0,
      pagesUsed: 0,
      promptTokens: 20,
      generatedTokens: 10,
      steps: 10,
    });
  });

  it('feeds a prompt in pieces within the budget, with the same outputs as in one piece', async () => {
    const requests = [1, 2, 3, 4].map((id) => request(id, 50 * id));
    const chunked = new Driver(options({ maxBatchTokens: 17 }));
    await chunked.run(requests);
    const whole = new Driver(options({ maxBatchTokens: 512, enableChunkedPrefill: false }));
    await whole.run(requests);
    expect(chunked.engine.maxStepTokens).toBe(17);
    for (const { id } of requests) expect(chunked.of(id)).toEqual(whole.of(id));
    expect(chunked.of(4).tokens).toHaveLength(10);
  });

  it('without chunked prefill keeps a prompt waiting until it fits whole', async () => {
    const driver = new Driver(options({ maxBatchTokens: 100, maxModelLen: 100, enableChunkedPrefill: false }));
    const rows: number[][] = [];
    const run = driver.engine.step.bind(driver.engine);
    driver.engine.step = (plan) => {
      rows.push([...plan.rows.filter((_, index) => index % 4 === 2)]);
      return run(plan);
    };
    await driver.run([request(1, 60), request(2, 60), request(3, 30)]);
    // The second does not fit beside the first's prompt; the third, though small, does not overtake it.
    expect(rows.slice(0, 3)).toEqual([[60], [1, 60, 30], [1, 1, 1]]);
  });

  it('runs at most maxSequences at once, in order of arrival', async () => {
    const driver = new Driver(options({ maxSequences: 3 }));
    const requests = Array.from({ length: 40 }, (_, index) => request(index + 1, 5 + (index % 30)));
    await driver.run(requests);
    expect(driver.engine.maxOpen).toBe(3);
    expect(driver.started).toEqual(requests.map(({ id }) => id));
    expect(Math.max(...driver.reports.map(({ running }) => running))).toBe(3);
  });

  it('preempts the youngest when pages run out; its outputs are those of running alone', async () => {
    const driver = new Driver(options({ pages: 12, maxModelLen: 160 }));
    const requests = [1, 2, 3, 4].map((id) => request(id, 14, { maxTokens: 80, logprobs: 0 }));
    await driver.run(requests);
    expect(driver.stats.preemptions).toBeGreaterThan(0);
    for (const each of requests) expect(driver.of(each.id)).toMatchObject(expectedOutputs(each, VOCABULARY));
    expect(driver.finished[0]).toBe(1);
    expect(driver.stats.generatedTokens).toBe(320);
    expect(driver.stats.promptTokens).toBe(4 * 14);
    expect(driver.stats.pagesUsed).toBe(0);
  });

  it('does not admit what would be preempted at once', async () => {
    // Two sequences of 5 pages in a pool of 6: one after the other costs nothing, together they would starve each other.
    const driver = new Driver(options({ pages: 6, maxModelLen: 96 }));
    await driver.run([request(1, 40, { maxTokens: 40 }), request(2, 40, { maxTokens: 40 })]);
    expect(driver.stats.preemptions).toBe(0);
    expect(driver.finished).toEqual([1, 2]);
  });

  it('ends a sequence with length at maxModelLen', async () => {
    const driver = new Driver(options({ maxModelLen: 64 }));
    await driver.run([request(1, 60, { maxTokens: 1000 })]);
    expect(driver.of(1)).toMatchObject({ finish: 'length' });
    expect(driver.of(1).tokens).toHaveLength(4);
  });

  it('stops at a stop id, but not before minTokens', async () => {
    const all = expectedOutputs(request(1, 9), VOCABULARY).tokens;
    const stopIds = Int32Array.of(all[2] as number);
    const driver = new Driver(options());
    const late = request(2, 9, { stopIds, minTokens: 5 });
    late.promptIds = request(1, 9).promptIds;
    await driver.run([request(1, 9, { stopIds }), late]);
    expect(driver.of(1)).toMatchObject({ tokens: all.slice(0, 3), finish: 'stop' });
    expect(driver.of(2).tokens.length).toBeGreaterThanOrEqual(5);
    expect(driver.of(2)).toMatchObject(expectedOutputs(late, VOCABULARY));
  });

  it('holds minTokens to the room that the context leaves', async () => {
    const driver = new Driver(options({ maxModelLen: 64 }));
    await driver.run([request(1, 60, { maxTokens: 30, minTokens: 30 }), request(2, 5)]);
    expect([driver.of(1).tokens.length, driver.of(2).tokens.length]).toEqual([4, 10]);
  });

  it('continues a sequence from resumeIds with the outputs of an unbroken run', async () => {
    const whole = expectedOutputs(request(1, 20, { maxTokens: 30 }), VOCABULARY);
    for (const kept of [1, 12, 13, 29]) {
      const driver = new Driver(options({ maxBatchTokens: 16 }));
      const resumed = { ...request(1, 20, { maxTokens: 30 }), resumeIds: Int32Array.from(whole.tokens.slice(0, kept)) };
      await driver.run([resumed]);
      expect(driver.of(1)).toMatchObject({ tokens: whole.tokens.slice(kept), finish: whole.finish });
    }
  });

  it('ends only the sequence whose logits were not finite', async () => {
    const driver = new Driver(options(), { nanPrompt: 999 });
    const bad = request(2, 5);
    bad.promptIds[0] = 999;
    await driver.run([request(1, 5), bad, request(3, 5)]);
    expect(driver.of(2)).toMatchObject({ tokens: [], finish: 'error', error: expect.stringContaining('not finite') });
    for (const id of [1, 3]) expect(driver.of(id)).toMatchObject(expectedOutputs(request(id, 5), VOCABULARY));
  });

  it('carries logprobs, ranks and the best ids of those that asked', async () => {
    const driver = new Driver(options());
    const outputs: [number, number, number][] = [];
    driver.onOutput = ({ id, logprobs, ranks, top, tokens }) => {
      outputs.push([id, logprobs.length, top[0]?.ids.length ?? -1]);
      if (id !== 2) return;
      expect([logprobs[0], ranks[0]]).toEqual([-(tokens[0] as number) / 8, 1]);
      expect([...(top[0]?.ids ?? [])]).toEqual([0, 1, 2].map((step) => (tokens[0] as number) + step));
    };
    const short = { maxTokens: 1 };
    await driver.run([
      request(1, 3, short),
      request(2, 3, { ...short, logprobs: 3 }),
      request(3, 3, { ...short, logprobs: 0 }),
    ]);
    expect(outputs).toEqual([
      [1, 0, -1],
      [2, 1, 3],
      [3, 1, 0],
    ]);
  });
});

describe('aborts', () => {
  it('free pages and slot at the next step boundary', async () => {
    const driver = new Driver(options({ maxSequences: 2 }));
    driver.onOutput = ({ id }) => {
      if (id === 1 && driver.of(1).tokens.length === 3) driver.loop.abort([1, 3]);
    };
    await driver.run([request(1, 40, { maxTokens: 100 }), request(2, 5), request(3, 5), request(4, 5)]);
    expect(driver.of(1).tokens.length).toBeLessThanOrEqual(4);
    expect(driver.of(1).finish).toBeNull();
    expect(driver.collected.has(3)).toBe(false);
    for (const id of [2, 4]) expect(driver.of(id)).toMatchObject(expectedOutputs(request(id, 5), VOCABULARY));
    expect(driver.stats).toMatchObject({ running: 0, waiting: 0, pagesUsed: 0 });
  });

  it("during a step drop that step's result", async () => {
    const driver: Driver = new Driver(options(), {
      onStep: (step) => (step === 4 ? driver.loop.abort([1]) : undefined),
    });
    await driver.run([request(1, 5), request(2, 5)]);
    expect(driver.of(1).tokens).toHaveLength(3);
    expect(driver.of(2).finish).toBe('length');
  });

  it('of unknown ids change nothing', async () => {
    const driver = new Driver(options());
    driver.loop.abort([1, 99, -5]);
    await driver.run([request(1, 5)]);
    driver.loop.abort([1]);
    expect(driver.of(1)).toMatchObject(expectedOutputs(request(1, 5), VOCABULARY));
  });
});

describe('refusals', () => {
  const cases: [string, ReturnType<typeof request>, string][] = [
    ['an empty prompt', request(1, 0), 'empty'],
    ['a prompt without room for an answer', request(1, 256), 'leaves no room'],
    [
      'an id above the vocabulary',
      { ...request(1, 3), promptIds: Int32Array.of(VOCABULARY) },
      'outside of the vocabulary',
    ],
    ['a negative id', { ...request(1, 3), resumeIds: Int32Array.of(-1) }, 'outside of the vocabulary'],
    ['more pages than there are', request(1, 100, { maxTokens: 100 }), 'KV pages'],
    ['a temperature that is not a number', request(1, 3, { temperature: NaN }), 'temperature'],
    ['a negative temperature', request(1, 3, { temperature: -1 }), 'temperature'],
    ['top_p 0', request(1, 3, { topP: 0 }), 'topP'],
    ['a broken top_k', request(1, 3, { topK: 1.5 }), 'topK'],
    ['min_p above 1', request(1, 3, { minP: 1.5 }), 'minP'],
    ['no tokens', request(1, 3, { maxTokens: 0 }), 'maxTokens'],
    ['too many logprobs', request(1, 3, { logprobs: 21 }), 'logprobs'],
    ['a stop id outside of the vocabulary', request(1, 3, { stopIds: Int32Array.of(VOCABULARY) }), 'stopIds'],
    ['a frequency penalty above 2', request(1, 3, { frequencyPenalty: 2.1 }), 'frequencyPenalty'],
    ['a presence penalty that is not a number', request(1, 3, { presencePenalty: NaN }), 'presencePenalty'],
    ['a repetition penalty of 0', request(1, 3, { repetitionPenalty: 0 }), 'repetitionPenalty'],
    ['a bias without value', request(1, 3, { biasIds: Int32Array.of(1) }), 'biasValues'],
    ['a bias above 100', request(1, 3, { biasIds: Int32Array.of(1), biasValues: Float32Array.of(101) }), 'biasValues'],
    ['an unknown allowed id', request(1, 3, { allowedIds: Int32Array.of(VOCABULARY) }), 'allowedIds'],
    ['allowed ids out of order', request(1, 3, { allowedIds: Int32Array.of(5, 4) }), 'allowedIds'],
    ['an empty bad word', request(1, 3, { badWords: [new Int32Array(0)] }), 'badWords'],
    ['an unknown logprobs mode', request(1, 3, { logprobsMode: 'cooked' as 'raw' }), 'logprobsMode'],
    ['a salt that is not text', { ...request(1, 3), cacheSalt: 7 as unknown as string }, 'cacheSalt'],
    ['an adapter without a version', { ...request(1, 3), adapter: { version: '', directory: '/a' } }, 'adapter'],
    ['too many stop ids', request(1, 3, { stopIds: new Int32Array(1025) }), 'stopIds'],
    [
      'resumption of what has ended',
      { ...request(1, 3, { maxTokens: 2 }), resumeIds: Int32Array.of(1, 2) },
      'all its tokens',
    ],
  ];

  it.each(cases)('%s: an error for that request, and the next one runs', async (_, bad, text) => {
    const driver = new Driver(options({ pages: 10 }));
    await driver.run([bad, request(2, 5)]);
    expect(driver.of(1)).toMatchObject({ tokens: [], finish: 'error', error: expect.stringContaining(text) });
    expect(driver.of(2)).toMatchObject(expectedOutputs(request(2, 5), VOCABULARY));
    expect(driver.stats.promptTokens).toBe(5);
  });

  it('settings that no schedule can keep to name their flags', () => {
    expect(() => new Scheduler(options({ maxSequences: 65 }))).toThrow(
      /--max-num-batched-tokens \(64\).*--max-num-seqs \(65\)/,
    );
    expect(() => new Scheduler(options({ enableChunkedPrefill: false }))).toThrow('--max-model-len (256)');
    expect(() => new Scheduler(options({ pages: 0 }))).toThrow('pages');
  });
});

describe('the loop', () => {
  it('sleeps without steps or reports while there is nothing to do, and wakes for a message', async () => {
    const driver = new Driver(options());
    const run = driver.loop.run();
    driver.loop.submit([request(1, 5, { maxTokens: 1 })]);
    await until(() => driver.of(1).finish !== null);
    const before = [driver.engine.steps, driver.reports.length];
    for (let turn = 0; turn < 200; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect([driver.engine.steps, driver.reports.length]).toEqual(before);
    driver.loop.submit([request(2, 5, { maxTokens: 1 })]);
    driver.loop.drain();
    await run;
    expect(driver.of(2).finish).toBe('length');
  });

  it('sends one report per step for all sequences', async () => {
    const driver = new Driver(options());
    await driver.run(Array.from({ length: 8 }, (_, index) => request(index + 1, 4, { maxTokens: 50 })));
    // One for the start and at most one for each step.
    expect(driver.engine.steps).toBe(50);
    expect(driver.reports.length).toBeLessThanOrEqual(52);
  });

  it('waits for a receiver that is behind', async () => {
    const driver = new Driver(options());
    let release: () => void = () => {};
    let reports = 0;
    const scheduler = new Scheduler(options());
    const { SchedulerLoop } = await import('../../../src/control/scheduler/loop.ts');
    const loop = new SchedulerLoop(scheduler, driver.engine, () => {
      reports++;
      return reports === 3 ? new Promise<void>((resolve) => (release = resolve)) : undefined;
    });
    loop.submit([request(1, 5, { maxTokens: 30 })]);
    loop.drain();
    const run = loop.run();
    await until(() => reports === 3);
    for (let turn = 0; turn < 100; turn++) await new Promise((resolve) => setImmediate(resolve));
    expect(reports).toBe(3);
    expect(driver.engine.steps).toBeLessThan(5);
    release();
    await run;
    expect(driver.engine.steps).toBe(30);
  });

  it('tells of adapters that come and go while nothing runs', async () => {
    const driver = new Driver(options());
    await driver.complete([request(1, 3)]);
    await driver.adapters.load({ version: 'v', directory: '/v' });
    await until(() => driver.stats.adapters?.resident === 1);
    driver.adapters.unload('v');
    await until(() => driver.stats.adapters?.resident === 0);
    await driver.close();
  });

  it('rejects when a step fails', async () => {
    const driver = new Driver(options(), {
      onStep: (step) => (step === 3 ? Promise.reject(new Error('broken')) : undefined),
    });
    await expect(driver.run([request(1, 5)])).rejects.toThrow('broken');
  });

  it('finds a page that was not given back when it becomes idle', async () => {
    const { PagePool } = await import('../../../src/control/scheduler/pages.ts');
    const release = PagePool.prototype.release;
    PagePool.prototype.release = function (pages) {
      release.call(this, pages.subarray(1));
    };
    try {
      await expect(new Driver(options()).run([request(1, 40)])).rejects.toThrow('still holds 1 pages');
    } finally {
      PagePool.prototype.release = release;
    }
  });
});

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setImmediate(resolve));
}

describe('sampling helper', () => {
  it('differs by seed, choice and index, so that an error in any of them shows', () => {
    const outputs = (changes: Parameters<typeof sampling>[0]) =>
      expectedOutputs({ promptIds: Int32Array.of(1, 2, 3), sampling: sampling(changes) }, VOCABULARY).tokens.join();
    expect(new Set([outputs({}), outputs({ seed: 8n }), outputs({ choice: 1 })]).size).toBe(3);
  });
});
