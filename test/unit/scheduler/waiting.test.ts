import { describe, expect, it } from 'vitest';
import { FairQueue } from '../../../src/control/scheduler/fair-queue.ts';
import { before, HeapQueue } from '../../../src/control/scheduler/heap-queue.ts';
import { Sequence } from '../../../src/control/scheduler/sequence.ts';
import { FcfsQueue, type WaitingQueue } from '../../../src/control/scheduler/waiting.ts';
import { random, request } from './drive.ts';

const sequence = (id: number) => new Sequence(request(id, 3), 100);

function drainIds(queue: WaitingQueue): number[] {
  const ids: number[] = [];
  for (let next = queue.take(); next; next = queue.take()) ids.push(next.id);
  return ids;
}

describe('FcfsQueue', () => {
  it('gives sequences in order of arrival', () => {
    const queue = new FcfsQueue();
    for (let id = 0; id < 5000; id++) queue.push(sequence(id));
    expect(queue.size).toBe(5000);
    expect(drainIds(queue)).toEqual(Array.from({ length: 5000 }, (_, id) => id));
    expect(queue.size).toBe(0);
    expect(queue.peek()).toBeUndefined();
  });

  it('puts preempted sequences before all others, the oldest first', () => {
    const queue = new FcfsQueue();
    queue.push(sequence(10));
    // The youngest is preempted first.
    for (const id of [3, 2, 1]) queue.requeue(sequence(id));
    expect(drainIds(queue)).toEqual([1, 2, 3, 10]);
  });

  it('equals a plain list under random use', () => {
    const queue = new FcfsQueue();
    const draw = random(11);
    const model: Sequence[] = [];
    for (let id = 0; id < 5_000; id++) {
      const kind = draw(10);
      if (kind < 4) model.push(push(queue, sequence(id)));
      else if (kind < 5) model.unshift(requeue(queue, sequence(id)));
      else if (kind < 8 && model.length > 0) queue.remove(model.splice(draw(model.length), 1)[0] as Sequence);
      else expect(queue.take()).toBe(model.shift());
      expect(queue.size).toBe(model.length);
      expect(queue.peek()).toBe(model[0]);
    }
    expect(drainIds(queue)).toEqual(model.map(({ id }) => id));
  });
});

describe('HeapQueue', () => {
  it('equals a sorted list under random use', () => {
    const queue = new HeapQueue();
    const draw = random(12);
    const model: Sequence[] = [];
    for (let id = 0; id < 5_000; id++) {
      const kind = draw(10);
      if (kind < 5) {
        const added = Object.assign(sequence(id), { rank: draw(50), arrival: id });
        if (kind === 0) queue.requeue(added);
        else queue.push(added);
        model.push(added);
        model.sort((a, b) => (before(a, b) ? -1 : 1));
      } else if (kind < 8 && model.length > 0) {
        queue.remove(model.splice(draw(model.length), 1)[0] as Sequence);
      } else {
        expect(queue.take()).toBe(model.shift());
      }
      expect(queue.size).toBe(model.length);
      expect(queue.peek()).toBe(model[0]);
    }
    expect(drainIds(queue)).toEqual(model.map(({ id }) => id));
  });
});

describe('FairQueue', () => {
  let arrivals = 0;
  const arrive = (id: number, tenant: string) =>
    Object.assign(new Sequence({ ...request(id, 3), tenant }, 100), { arrival: arrivals++ });
  const fair = (now = () => 0) => new FairQueue('fcfs', 10_000, now);

  function runOne(queue: FairQueue, tokens: number): string {
    const next = queue.take() as Sequence;
    queue.began(next);
    queue.charge(next, tokens);
    queue.ended(next);
    return next.tenant;
  }

  it('serves the tenant that was served least, in order of arrival among equals', () => {
    const queue = fair();
    for (let id = 0; id < 6; id++) queue.push(arrive(id, id < 4 ? 'a' : 'b'));
    const order = Array.from({ length: 6 }, (_, index) => runOne(queue, index === 0 ? 10 : 4));
    expect(order).toEqual(['a', 'b', 'b', 'a', 'a', 'a']);
    expect(queue.size).toBe(0);
    for (const [id, tenant] of ['c', 'd', 'c', 'd'].entries()) queue.push(arrive(10 + id, tenant));
    expect(Array.from({ length: 4 }, () => runOne(queue, 0))).toEqual(['c', 'd', 'c', 'd']);
  });

  it('gives nobody credit for a pause, and takes no debt over one of all', () => {
    const queue = fair();
    for (let id = 0; id < 5; id++) queue.push(arrive(id, 'a'));
    for (let round = 0; round < 3; round++) runOne(queue, 1000);
    // One that comes now does not first get what the other had before.
    for (let id = 10; id < 15; id++) queue.push(arrive(id, 'b'));
    expect(Array.from({ length: 4 }, () => runOne(queue, 10))).toEqual(['a', 'b', 'a', 'b']);
    while (queue.size > 0) runOne(queue, 10);
    for (const [id, tenant] of ['c', 'a', 'c', 'a'].entries()) queue.push(arrive(20 + id, tenant));
    expect(Array.from({ length: 4 }, () => runOne(queue, 10))).toEqual(['c', 'a', 'c', 'a']);
  });

  it('keeps the account of a tenant that pauses while others go on', () => {
    const queue = fair();
    for (const [id, tenant] of ['a', 'b', 'b', 'b'].entries()) queue.push(arrive(id, tenant));
    expect(runOne(queue, 1000)).toBe('a');
    expect(runOne(queue, 10)).toBe('b');
    queue.push(arrive(4, 'a'));
    // It does not begin at the 10 of the other.
    expect(Array.from({ length: 3 }, () => runOne(queue, 10))).toEqual(['b', 'b', 'a']);
  });

  it('remembers a bounded number of accounts, those of the tenants that were active last', () => {
    const queue = fair();
    const visit = (tenant: string, tokens: number) => {
      const visitor = arrive(10, tenant);
      queue.push(visitor);
      queue.charge(visitor, tokens);
      queue.remove(visitor);
    };
    // Others are active all the time, so that no pause is one of all.
    for (let id = 0; id < 2; id++) queue.push(arrive(id, 'stays'));
    for (const tenant of ['returns', 'forgotten']) visit(tenant, 1000);
    for (let id = 0; id < 1000; id++) visit(`t${id}`, 1000);
    visit('returns', 0);
    for (let id = 1000; id < 1023; id++) visit(`t${id}`, 1000);
    for (const tenant of ['returns', 'forgotten']) queue.push(arrive(20, tenant));
    expect(Array.from({ length: 4 }, () => runOne(queue, 2000))).toEqual(['stays', 'forgotten', 'returns', 'stays']);
  });

  it('counts no time as waited in which the tenant ran something', () => {
    let nowMs = 0;
    const queue = fair(() => nowMs);
    for (let id = 0; id < 2; id++) queue.push(arrive(id, 'runs'));
    const first = queue.take() as Sequence;
    queue.began(first);
    queue.push(Object.assign(arrive(2, 'waits'), { arrivedAt: 30_000 }));
    nowMs = 50_000;
    queue.ended(first);
    nowMs = 55_000;
    expect(queue.peek()?.tenant).toBe('waits');
  });

  it('lets a tenant that runs nothing pass those who do, after a while', () => {
    let nowMs = 0;
    const queue = fair(() => nowMs);
    queue.push(arrive(1, 'a'));
    queue.push(arrive(2, 'a'));
    const first = queue.take() as Sequence;
    queue.began(first);
    queue.charge(first, 5);
    queue.push(arrive(3, 'b'));
    // The account of b is even with a's, but a came first.
    expect(queue.peek()?.tenant).toBe('a');
    nowMs = 10_001;
    expect(queue.peek()?.tenant).toBe('b');
    // What was looked at can still be taken.
    const seen = queue.peek() as Sequence;
    nowMs = 20_002;
    queue.takeHead(seen);
    expect(queue.size).toBe(1);
    expect(() => queue.takeHead(seen)).toThrow('not the next');
  });

  it('forgets tenants that are gone', () => {
    const queue = fair();
    queue.push(arrive(0, 'stays'));
    for (let id = 1; id < 5000; id++) {
      const passing = arrive(id, `t${id}`);
      queue.push(passing);
      queue.remove(passing);
    }
    expect([queue.size, queue.runningOf('t1'), queue.peek()?.id]).toEqual([1, 0, 0]);
  });
});

function push(queue: FcfsQueue, added: Sequence): Sequence {
  queue.push(added);
  return added;
}

function requeue(queue: FcfsQueue, added: Sequence): Sequence {
  queue.requeue(added);
  return added;
}
