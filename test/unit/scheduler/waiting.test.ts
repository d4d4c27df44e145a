import { describe, expect, it } from 'vitest';
import { Sequence } from '../../../src/control/scheduler/sequence.ts';
import { FcfsQueue } from '../../../src/control/scheduler/waiting.ts';
import { random, request } from './drive.ts';

const sequence = (id: number) => new Sequence(request(id, 3), 100);

function drainIds(queue: FcfsQueue): number[] {
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

function push(queue: FcfsQueue, added: Sequence): Sequence {
  queue.push(added);
  return added;
}

function requeue(queue: FcfsQueue, added: Sequence): Sequence {
  queue.requeue(added);
  return added;
}
