/** Steps that are planned before the results of the step before are known. */
import { describe, expect, it } from 'vitest';
import type { NativeProgram } from '../../../src/control/engine/native-grammar.ts';
import type { StepResult } from '../../../src/control/engine/native.ts';
import type { SequenceRequest } from '../../../src/control/engine/protocol.ts';
import type { SchedulerOptions } from '../../../src/control/scheduler/admission.ts';
import { BackgroundShare } from '../../../src/control/scheduler/background.ts';
import { SchedulerLoop } from '../../../src/control/scheduler/loop.ts';
import type { PlannedStep } from '../../../src/control/scheduler/plan.ts';
import { Scheduler } from '../../../src/control/scheduler/scheduler.ts';
import { Driver, options, request, VOCABULARY } from './drive.ts';
import { expectedOutputs, FakeNativeEngine } from './fake-native.mjs';

const alone = (each: SequenceRequest) => expectedOutputs(each, VOCABULARY).tokens;

/** Scheduler and engine, step by step: a step's results are there before they are applied, as when it has just ended. */
class Steps {
  readonly scheduler: Scheduler;
  readonly engine: FakeNativeEngine;
  readonly tokens = new Map<number, number[]>();

  constructor(changes: Partial<SchedulerOptions> = {}) {
    const settings = options(changes);
    this.scheduler = new Scheduler(settings);
    this.engine = new FakeNativeEngine({ ...settings, samplableVocab: VOCABULARY });
  }

  submit(...requests: SequenceRequest[]): void {
    for (const each of requests) expect(this.scheduler.submit(each)).toBeNull();
  }

  /** One step by itself, which everything before it has been applied to. */
  async alone(): Promise<void> {
    const step = this.scheduler.plan() as PlannedStep;
    this.apply(step, await this.engine.step(step.plan));
  }

  apply(step: PlannedStep, result: StepResult): void {
    const { ids } = this.scheduler.apply(step, result);
    ids.forEach((id, index) => {
      if (id >= 0) this.tokens.set(id, [...(this.tokens.get(id) ?? []), result.tokens[index] as number]);
    });
  }

  /** A step and the one planned ahead of its results; `between`: while the first runs. */
  async both(between: () => PlannedStep | null = () => null): Promise<PlannedStep> {
    const first = this.scheduler.plan() as PlannedStep;
    const result = await this.engine.step(first.plan);
    const planned = this.scheduler.planAhead() as PlannedStep;
    const next = between() ?? planned;
    this.apply(first, result);
    this.apply(next, await this.engine.step(next.plan));
    return next;
  }

  async finish(): Promise<void> {
    while (this.scheduler.hasWork) {
      const step = this.scheduler.plan();
      if (step) this.apply(step, await this.engine.step(step.plan));
    }
    this.scheduler.checkIdle();
  }
}

const rowsOf = ({ plan }: PlannedStep) =>
  Array.from({ length: plan.rows.length / 4 }, (_, row) => [...plan.rows.slice(4 * row, 4 * row + 4)]);

describe('a step planned ahead', () => {
  it('feeds what the running one samples, under the name of its slot, and pieces of prompts', async () => {
    const steps = new Steps({ maxBatchTokens: 16 });
    const requests = [request(1, 5), request(2, 40)];
    steps.submit(...requests);
    const next = await steps.both();
    expect(rowsOf(next)).toEqual([
      [0, 5, 1, 1],
      [1, 11, 15, 0],
    ]);
    expect(next.plan.tokens[0]).toBe(-1);
    expect(next.plan.ahead).toBe(true);
    await steps.finish();
    for (const each of requests) expect(steps.tokens.get(each.id)).toEqual(alone(each));
  });

  it('has no row of a sequence that must end with the running one', async () => {
    const steps = new Steps();
    steps.submit(request(1, 5, { maxTokens: 2 }), request(2, 5, { maxTokens: 4 }));
    await steps.alone();
    const next = await steps.both();
    expect(rowsOf(next).map(([slot]) => slot)).toEqual([1]);
    const last = steps.scheduler.plan() as PlannedStep;
    expect(steps.scheduler.planAhead()).toBeNull();
    steps.apply(last, await steps.engine.step(last.plan));
    expect([1, 2].map((id) => steps.tokens.get(id)?.length)).toEqual([2, 4]);
    await steps.finish();
  });

  it('has a row in vain of one that a stop token ended, whose pages and slot others get afterwards', async () => {
    const steps = new Steps({ maxSequences: 2, pages: 4 });
    const stops = request(1, 15, { maxTokens: 30 });
    const stopIds = Int32Array.of(alone(stops)[1] as number);
    const requests = [{ ...stops, sampling: { ...stops.sampling, stopIds } }, request(2, 5), request(3, 33)];
    steps.submit(...requests);
    await steps.alone();
    const next = await steps.both();
    // The row in vain has a page of its own.
    expect(rowsOf(next)).toEqual([
      [0, 16, 1, 1],
      [1, 6, 1, 1],
    ]);
    expect(steps.engine.rowsInVain).toBe(1);
    expect(steps.scheduler.stats()).toMatchObject({ running: 1, pagesUsed: 1 });
    await steps.finish();
    for (const each of requests) expect(steps.tokens.get(each.id)).toEqual(alone(each));
  });

  it('brings nothing of one that was aborted meanwhile, ended or not', async () => {
    for (const stop of [false, true]) {
      const steps = new Steps();
      const both = [request(1, 15), request(2, 5)];
      const stopIds = stop ? Int32Array.of(alone(both[0]!)[1] as number) : new Int32Array(0);
      steps.submit({ ...both[0]!, sampling: { ...both[0]!.sampling, stopIds } }, both[1]!);
      await steps.alone();
      await steps.both(() => {
        steps.scheduler.abort(1);
        return null;
      });
      expect(steps.engine.rowsInVain).toBe(stop ? 1 : 0);
      expect(steps.tokens.get(1)).toEqual(alone(both[0]!).slice(0, 1));
      await steps.finish();
      expect(steps.tokens.get(2)).toEqual(alone(both[1]!));
    }
  });

  it('may use the pages of one that was aborted before, while its last step runs', async () => {
    const steps = new Steps({ pages: 4, enablePrefixCaching: false });
    const requests = [request(1, 30, { maxTokens: 4 }), request(2, 5), request(3, 20)];
    steps.submit(requests[0]!, requests[1]!);
    const first = steps.scheduler.plan() as PlannedStep;
    const result = await steps.engine.step(first.plan);
    steps.scheduler.abort(1);
    steps.submit(requests[2]!);
    const next = steps.scheduler.planAhead() as PlannedStep;
    expect(next.plan.closes).toEqual(Int32Array.of(0));
    expect(next.plan.opens.map(({ slot }) => slot)).toEqual([0]);
    steps.apply(first, result);
    steps.apply(next, await steps.engine.step(next.plan));
    await steps.finish();
    expect(steps.tokens.get(1)).toBeUndefined();
    for (const each of requests.slice(1)) expect(steps.tokens.get(each.id)).toEqual(alone(each));
  });

  it('is joined by newcomers until it begins', async () => {
    const steps = new Steps();
    const requests = [1, 2, 3].map((id) => request(id, 20));
    steps.submit(requests[0]!);
    const next = await steps.both(() => {
      expect(steps.scheduler.mayJoin).toBe(false);
      steps.submit(requests[1]!, requests[2]!);
      expect(steps.scheduler.mayJoin).toBe(true);
      return steps.scheduler.join();
    });
    expect(rowsOf(next)).toEqual([
      [0, 20, 1, 1],
      [1, 0, 20, 1],
      [2, 0, 20, 1],
    ]);
    expect(steps.scheduler.takeStarted().map(({ id }) => id)).toEqual([1, 2, 3]);
    await steps.finish();
    for (const each of requests) expect(steps.tokens.get(each.id)).toEqual(alone(each));
  });

  it('takes nobody his place: who finds no page waits for a step planned after the results', async () => {
    const requests = [1, 2].map((id) => request(id, 10, { maxTokens: 40 }));
    const steps = new Steps({ pages: 5, enablePrefixCaching: false });
    steps.submit(...requests);
    for (let step = 0; step < 22; step++) await steps.alone();
    // Both are about to begin their third page.
    const next = await steps.both();
    expect(rowsOf(next)).toEqual([[0, 32, 1, 1]]);
    expect(steps.scheduler.stats().preemptions).toBe(0);
    const last = steps.scheduler.plan() as PlannedStep;
    expect(steps.scheduler.stats().preemptions).toBe(1);
    steps.apply(last, await steps.engine.step(last.plan));
    await steps.finish();
    for (const each of requests) expect(steps.tokens.get(each.id)).toEqual(alone(each));
  });

  it('is followed by one planned after the results where somebody found no page', async () => {
    const steps = new Steps({ pages: 5, enablePrefixCaching: false });
    steps.submit(...[1, 2].map((id) => request(id, 10, { maxTokens: 40 })));
    for (let step = 0; step < 22; step++) await steps.alone();
    const first = steps.scheduler.plan() as PlannedStep;
    const result = await steps.engine.step(first.plan);
    const next = steps.scheduler.planAhead() as PlannedStep;
    steps.apply(first, result);
    expect(steps.scheduler.planAhead()).toBeNull();
    steps.apply(next, await steps.engine.step(next.plan));
    await steps.finish();
  });
});

describe('no step is planned ahead', () => {
  const program: NativeProgram = {
    micros: 1,
    heldBytes: () => 1,
    worn: () => false,
    constrain: () => ({ take: () => {}, forced: () => new Uint8Array(0), jump: () => 0 }),
  };
  const speculation = { numSpeculativeTokens: 2, promptLookupMax: 2, promptLookupMin: 1, measured: false };
  const adviser = { open: ({ id }: SequenceRequest) => (id === 1 ? {} : null), advise: () => [{ control: null }] };
  const speller = { spell: () => new Int32Array(0) };

  it.each([
    { what: 'of a sequence that an extension steers', changes: { adviser }, ahead: false },
    {
      what: 'while proposals are made',
      changes: { speculation: { ...speculation, disableByBatchSize: 2 } },
      ahead: false,
    },
    {
      what: '(it is: too many run for proposals)',
      changes: { speculation: { ...speculation, disableByBatchSize: 1 } },
      ahead: true,
    },
    { what: 'where a grammar may force text', changes: { speller }, ahead: false },
    { what: '(it is: nothing is forced)', changes: {}, ahead: true },
  ])('$what', async ({ changes, ahead }) => {
    const steps = new Steps(changes);
    expect(steps.scheduler.submit({ ...request(1, 5), jumpForward: true }, program)).toBeNull();
    const step = steps.scheduler.plan() as PlannedStep;
    expect(steps.scheduler.planAhead() !== null).toBe(ahead);
    expect(step.ahead).toBe(false);
  });

  it('while a sequence waits for a prefix that is being computed', async () => {
    const steps = new Steps();
    const twin = { ...request(2, 40), promptIds: request(1, 40).promptIds };
    steps.submit(request(1, 40), twin);
    const step = steps.scheduler.plan() as PlannedStep;
    expect(step.fed.length).toBe(1);
    expect(steps.scheduler.planAhead()).toBeNull();
    steps.apply(step, await steps.engine.step(step.plan));
    const next = steps.scheduler.plan() as PlannedStep;
    expect(rowsOf(next)).toEqual([
      [0, 40, 1, 1],
      [1, 32, 8, 1],
    ]);
  });

  it('while others must give way to a sequence that waits', async () => {
    const steps = new Steps({ maxSequences: 1, schedulingPolicy: 'priority' });
    steps.submit({ ...request(1, 5), priority: 3 });
    const step = steps.scheduler.plan() as PlannedStep;
    steps.submit({ ...request(2, 5), priority: 0 });
    expect(steps.scheduler.planAhead()).toBeNull();
    steps.apply(step, await steps.engine.step(step.plan));
    expect((steps.scheduler.plan() as PlannedStep).fed.map(({ id }) => id)).toEqual([2]);
  });
});

describe('the loop', () => {
  it('gives the next step while one runs, and takes it back for newcomers', async () => {
    const requests = [1, 2, 3].map((id) => request(id, 20, { maxTokens: 20 }));
    const driver: Driver = new Driver(options(), {
      onStep: (step) => {
        if (step === 5) driver.loop.submit(requests.slice(1));
      },
    });
    await driver.run(requests.slice(0, 1));
    expect(driver.engine.joins).toBe(1);
    // Step 6 had been given when they came in step 5.
    expect(driver.engine.steps).toBe(25);
    for (const each of requests) expect(driver.of(each.id).tokens).toEqual(alone(each));
  });

  it('ends with a failed step, although the next one has been given', async () => {
    const onStep = (step: number) => (step === 3 ? Promise.reject(new Error('broken')) : undefined);
    await expect(new Driver(options(), { onStep }).run([request(1, 5)])).rejects.toThrow('broken');
  });

  it('stops when what it has given has ended', async () => {
    const driver: Driver = new Driver(options(), {
      onStep: (step) => {
        if (step === 3) driver.loop.stop();
      },
    });
    driver.loop.submit([request(1, 5, { maxTokens: 50 })]);
    await driver.loop.run();
    expect(driver.engine.steps).toBe(4);
    expect(driver.engine.busy).toBe(false);
  });

  it.each([
    { floor: 0.5, given: 1 },
    { floor: 0, given: 2 },
  ])('leaves room between steps for a share of $floor', async ({ floor, given }) => {
    let most = 0;
    const settings = options();
    const engine = new FakeNativeEngine(
      { ...settings, samplableVocab: VOCABULARY },
      { queues: true, onCall: () => (most = Math.max(most, 1 + Number(engine.waitsForStep))) },
    );
    const work = { pending: true, slice: () => Promise.resolve(), interrupt: () => {}, onPending: () => {} };
    const background = new BackgroundShare(work, floor);
    const loop = new SchedulerLoop(new Scheduler(settings), engine, () => undefined, { background });
    loop.submit([request(1, 5)]);
    loop.drain();
    await loop.run();
    expect(most).toBe(given);
  });
});
