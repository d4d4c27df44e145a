import { expect, test } from 'vitest';
import { SharedBound } from '../../../src/control/shared-bound.ts';
import { Turns } from '../../../src/control/turns.ts';

function filled(max: number, ...tenants: string[]): Turns<string> {
  const turns = new Turns<string>(max);
  tenants.forEach((tenant, at) => turns.push(tenant, `${tenant}${at}`));
  return turns;
}

const taken = (turns: Turns<string>, count: number) => Array.from({ length: count }, () => turns.take());

test('tenants have their turns, however many of one wait; within a tenant the oldest comes first', () => {
  const turns = filled(100, 'a', 'a', 'a', 'b', 'b', 'c');
  expect(taken(turns, 7)).toEqual(['a0', 'b3', 'c5', 'a1', 'b4', 'a2', undefined]);
});

test('who comes back at once has no turn before those that wait', () => {
  const turns = filled(100, 'a', 'b', 'b', 'b');
  const order: (string | undefined)[] = [];
  for (let i = 0; i < 6; i++) {
    order.push(turns.take());
    if (order.at(-1)?.startsWith('a')) turns.push('a', `a${i}`);
  }
  expect(order).toEqual(['a0', 'b1', 'a0', 'b2', 'a2', 'b3']);
});

test('one tenant may fill it, and each other still has its equal share', () => {
  const turns = new Turns<number>(12);
  const push = (tenant: string, count: number) =>
    Array.from({ length: count }, (_, at) => turns.push(tenant, at)).filter(Boolean).length;
  expect(push('a', 20)).toBe(12);
  expect(push('b', 20)).toBe(6);
  expect(push('c', 20)).toBe(4);
  expect(push('a', 1)).toBe(0);
  expect(turns.takeAll().length).toBe(22);
  expect([turns.take(), push('b', 20)]).toEqual([undefined, 12]);
});

test('where it is full, whoever comes new has an equal share beside those who were there', () => {
  const bound = new SharedBound(8);
  bound.add('a', 8);
  expect([bound.fits('b', 4), bound.fits('b', 5)]).toEqual([true, false]);
  bound.add('b', 4);
  expect([bound.fits('c', 2), bound.fits('c', 3)]).toEqual([true, false]);
});
