/** Who gets the time: serving first, training what is left, and its floor however busy serving is. */
import { describe, expect, it } from 'vitest';
import { TrainerHost } from '../../../src/control/engine/trainer-host.ts';
import type { NativeAddon, NativeModel } from '../../../src/control/engine/native.ts';
import type { TrainerState } from '../../../src/control/engine/training.ts';
import { BackgroundShare, type BackgroundWork } from '../../../src/control/scheduler/background.ts';
import { SchedulerLoop } from '../../../src/control/scheduler/loop.ts';
import { Scheduler } from '../../../src/control/scheduler/scheduler.ts';
import { options, request, VOCABULARY } from './drive.ts';
import { FakeNativeEngine } from './fake-native.mjs';

/** Work on a clock of its own: a slice takes what it was given, or `unit` if that is longer. */
class Clock implements BackgroundWork {
  ms = 0;
  pending = true;
  slices: number[] = [];
  onPending = () => {};
  readonly unit: number;
  constructor(unit = 0) {
    this.unit = unit;
  }
  slice(micros: number): Promise<void> {
    expect(Number.isInteger(micros)).toBe(true);
    this.slices.push(micros);
    this.ms += Math.max(micros, this.unit) / 1000;
    return Promise.resolve();
  }
  interrupts = 0;
  interrupt(): void {
    this.interrupts++;
  }
}

async function serve(share: BackgroundShare, clock: Clock, steps: number, stepMs: number): Promise<number> {
  for (let step = 0; step < steps; step++) {
    clock.ms += stepMs;
    if (share.owes(stepMs * 1000)) await share.pay();
  }
  return 1 - (steps * stepMs) / clock.ms;
}

describe('the floor', () => {
  it.each([
    [0.1, 20, 0],
    [0.1, 0.3, 0],
    [0.5, 7, 0],
    [0.1, 20, 9000],
    [0.3, 2, 9000],
    [0.1, 60, 0],
    [0.1, 2000, 0],
    [0.5, 30, 0],
    [0.5, 30, 9000],
    [0.9, 20, 0],
  ])('%d of the time beside steps of %d ms, units of %d us', async (floor, stepMs, unit) => {
    const clock = new Clock(unit);
    const share = new BackgroundShare(clock, floor, () => clock.ms);
    expect(await serve(share, clock, 2000, stepMs)).toBeCloseTo(floor, 2);
    // Nothing but what the step before it has earned makes a slice long.
    expect(Math.max(...clock.slices)).toBeLessThanOrEqual(
      Math.max(8000, Math.ceil((stepMs * 1000 * floor) / (1 - floor))),
    );
  });

  it('of 0 gives nothing while steps follow one another, and all of the time when none can run', async () => {
    const clock = new Clock();
    const share = new BackgroundShare(clock, 0, () => clock.ms);
    expect(await serve(share, clock, 100, 10)).toBe(0);
    await share.idle();
    expect(clock.slices).toEqual([50_000]);
  });

  it('ends a slice of idle time when something comes, not one that it owes', async () => {
    const clock = new Clock();
    const share = new BackgroundShare(clock, 0.5, () => clock.ms);
    share.interrupt();
    expect(share.owes(20_000)).toBe(true);
    const paid = share.pay();
    share.interrupt();
    await paid;
    expect(clock.interrupts).toBe(0);
    const idle = share.idle();
    share.interrupt();
    await idle;
    share.interrupt();
    expect(clock.interrupts).toBe(1);
  });

  it('is not saved up while there is nothing to do, nor without bound', async () => {
    const clock = new Clock();
    const share = new BackgroundShare(clock, 0.5, () => clock.ms);
    clock.pending = false;
    await serve(share, clock, 100, 100);
    clock.pending = true;
    expect(share.owes(1)).toBe(false);
    // A step of ten seconds earns ten, of which a quarter of one is paid.
    expect(share.owes(10_000_000)).toBe(true);
    await share.pay();
    expect(clock.slices).toEqual([250_000]);
    expect(share.owes(0)).toBe(false);
  });

  it('what is saved up is paid in short slices', async () => {
    // Calls end before their slice does, after a step that earned 200 ms.
    const clock = new Clock();
    const share = new BackgroundShare(clock, 0.5, () => clock.ms);
    clock.slice = (micros) => {
      clock.slices.push(micros);
      clock.ms += Math.min(micros, 3000) / 1000;
      return Promise.resolve();
    };
    expect(share.owes(200_000)).toBe(true);
    await share.pay();
    for (let step = 0; step < 5; step++) if (share.owes(1000)) await share.pay();
    expect(clock.slices).toEqual([200_000, 8000, 8000, 8000, 8000, 8000]);
  });

  it('is paid by a slice that no step waits for, of which signs are told now and then', async () => {
    const clock = new Clock();
    const share = new BackgroundShare(clock, 0.5, () => clock.ms);
    let signs = 0;
    share.onSign = () => signs++;
    expect(share.owes(400)).toBe(false);
    await share.idle();
    expect(share.owes(400)).toBe(false);
    expect(share.owes(400)).toBe(true);
    // Slices of 50 ms: one sign in ten.
    for (let slice = 1; slice < 30; slice++) await share.idle();
    expect(signs).toBe(3);
  });

  it('must be a share', () => {
    for (const floor of [-0.1, 0.91, NaN]) {
      expect(() => new BackgroundShare(new Clock(), floor)).toThrow('--training-floor');
    }
  });
});

interface FakeTrainer {
  left: number;
  /** Takes as many units as it is given until it is interrupted. */
  endless?: boolean;
  interrupted?: boolean;
  closed: boolean;
  slices: number;
}

/** Trainers whose every piece of work takes three slices. */
function fakeAddon(trainers: FakeTrainer[], order: string[] = []): NativeAddon {
  return {
    createTrainer: () => {
      const trainer: FakeTrainer = { left: 0, closed: false, slices: 0 };
      const name = String(trainers.push(trainer));
      const begin = () => {
        if (trainer.left > 0) throw new Error('another piece of work is unfinished');
        trainer.left = 3;
      };
      return Promise.resolve({
        forward: begin,
        backward: begin,
        optimize: begin,
        slice: async () => {
          if (trainer.closed) throw new Error('closed under a slice');
          trainer.interrupted = false;
          await new Promise((resolve) => setImmediate(resolve));
          trainer.slices++;
          while (trainer.endless && !trainer.interrupted) await new Promise((resolve) => setImmediate(resolve));
          order.push(name);
          return --trainer.left === 0;
        },
        scores: () => ({ logprobs: new Float32Array(1), entropies: new Float32Array(1) }),
        outcome: () => ({ gradNorm: 1, applied: true }),
        rowBytes: (tokens: number) => 1000 * tokens,
        interrupt: () => void (trainer.interrupted = true),
        state: () => Promise.resolve({}),
        close: () => void (trainer.closed = true),
      });
    },
  } as unknown as NativeAddon;
}

const STATE: TrainerState = { weights: { scale: 1, factors: [] }, optimizer: null };
const ALL = { kind: 'state' as const, first: 0, count: 1 };
const gradients = new Float32Array(1);

const TRAINER_OPTIONS = { maxRowTokens: 10, maxRowBytes: 2 ** 20, recompute: false };

function hostOf(trainers: FakeTrainer[], order: string[] = []): TrainerHost {
  return new TrainerHost(fakeAddon(trainers, order), {} as NativeModel, TRAINER_OPTIONS, () => {});
}

async function begin(host: TrainerHost, id: number): Promise<void> {
  host.open(id);
  await host.call(id, { kind: 'load', part: STATE });
  await host.call(id, { kind: 'begin' });
}

describe('trainers', () => {
  it('work in the order of their calls, one call of each in turn', async () => {
    const order: string[] = [];
    const host = hostOf([], order);
    await begin(host, 1);
    await begin(host, 2);
    const calls = [
      host.call(1, { kind: 'backward', gradients }),
      host.call(1, { kind: 'backward', gradients }),
      host.call(2, { kind: 'backward', gradients }),
    ];
    while (host.pending) await host.slice(1000);
    await Promise.all(calls);
    expect(order.join('')).toBe('111222111');
  });

  it('can be closed at any time: calls are told, and no slice loses its trainer', async () => {
    const trainers: FakeTrainer[] = [];
    const host = hostOf(trainers);
    await begin(host, 1);
    const calls = [host.call(1, { kind: 'backward', gradients }), host.call(1, ALL)];
    const told = Promise.all(calls.map((call) => expect(call).rejects.toThrow('closed')));
    const running = host.slice(1000);
    host.close(1);
    host.close(1);
    expect(trainers[0]?.closed).toBe(false);
    await running;
    expect(trainers[0]?.closed).toBe(true);
    await told;
    await expect(host.call(1, ALL)).rejects.toThrow('closed');
    expect(host.pending).toBe(false);
  });

  it('begin when those that were closed have given their memory back: in a slice, or while they were made', async () => {
    const trainers: FakeTrainer[] = [];
    const addon = fakeAddon(trainers);
    const alone: boolean[] = [];
    const createTrainer: NativeAddon['createTrainer'] = async (...args) => {
      alone.push(trainers.every(({ closed }) => closed));
      const made = await addon.createTrainer(...args);
      await new Promise((resolve) => setImmediate(resolve));
      return made;
    };
    const host = new TrainerHost({ ...addon, createTrainer }, {} as NativeModel, TRAINER_OPTIONS, () => {});
    await begin(host, 1);
    const told = expect(host.call(1, { kind: 'backward', gradients })).rejects.toThrow('closed');
    const running = host.slice(1000);
    host.close(1);
    const second = expect(begin(host, 2)).rejects.toThrow('closed');
    await Promise.all([running, told]);
    while (trainers.length < 2) await new Promise((resolve) => setImmediate(resolve));
    host.close(2);
    await begin(host, 3);
    await second;
    expect(alone).toEqual([true, true, true]);
    expect(trainers.map(({ closed }) => closed)).toEqual([true, true, false]);
  });

  it('fill the loop when nothing runs, and give way when something does', async () => {
    const trainers: FakeTrainer[] = [];
    const host = hostOf(trainers);
    let slicesAtEnd = -1;
    const onStep = (step: number) => {
      slicesAtEnd = (trainers[0]?.slices ?? 0) * 1000 + step;
    };
    const engine = new FakeNativeEngine({ ...options(), samplableVocab: VOCABULARY }, { onStep });
    const scheduler = new Scheduler(options());
    const loop = new SchedulerLoop(scheduler, engine, () => undefined, { background: new BackgroundShare(host, 0) });
    const ended = loop.run();
    await new Promise((resolve) => setImmediate(resolve));
    // The sleeping loop wakes up for training alone.
    await begin(host, 1);
    await host.call(1, { kind: 'backward', gradients });
    expect(trainers[0]?.slices).toBe(3);
    // With a floor of 0 not one slice is granted until the sequence has ended.
    loop.submit([request(1, 20, { maxTokens: 30 })]);
    const training = host.call(1, { kind: 'backward', gradients });
    await training;
    expect(slicesAtEnd).toBe(3030);
    // A slice of idle time does not make a request wait.
    Object.assign(trainers[0] as FakeTrainer, { endless: true });
    const endless = host.call(1, { kind: 'backward', gradients });
    await new Promise((resolve) => setImmediate(resolve));
    const steps = slicesAtEnd % 1000;
    loop.submit([request(2, 20, { maxTokens: 5 })]);
    while (slicesAtEnd % 1000 < steps + 5) await new Promise((resolve) => setImmediate(resolve));
    Object.assign(trainers[0] as FakeTrainer, { endless: false });
    loop.abort([]);
    await endless;
    loop.drain();
    await ended;
  });
});
