/** The table of states in the documentation is the one that the code goes by. */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import {
  hasEnded,
  LIFECYCLE,
  transition,
  TransitionError,
  type LifecycleKind,
} from '../../../src/control/lifecycle.ts';

const text = readFileSync(new URL('../../../docs/training-lifecycle.md', import.meta.url), 'utf8');
const documented = [...text.matchAll(/^\| (\w+) \| `(\w+)` \| `(\w+)` \| `(\w+)` \|/gm)].map((match) => match.slice(1));

const rows = (Object.keys(LIFECYCLE) as LifecycleKind[]).flatMap((kind) =>
  Object.entries(LIFECYCLE[kind]).flatMap(([state, actions]) =>
    Object.entries(actions as Record<string, string>).map(([action, next]) => [kind, state, action, next]),
  ),
);

test('the documentation lists every transition, in order', () => {
  expect(documented).toEqual(rows);
});

test.each(rows)('%s: %s, %s makes it %s', (kind, state, action, next) => {
  expect(transition(kind as LifecycleKind, state ?? '', action ?? '')).toBe(next);
});

describe('nothing else is allowed', () => {
  const actions = new Set(rows.map(([, , action]) => action ?? ''));
  const cases = (Object.keys(LIFECYCLE) as LifecycleKind[]).flatMap((kind) =>
    [...Object.keys(LIFECYCLE[kind]), 'none', '__proto__', 'constructor'].flatMap((state) =>
      [...actions, '__proto__', 'toString'].map((action) => [kind, state, action] as const),
    ),
  );
  const legal = new Set(rows.map((row) => row.slice(0, 3).join(' ')));
  test.each(cases.filter((row) => !legal.has(row.join(' '))))('%s: %s, %s', (kind, state, action) => {
    expect(() => transition(kind, state, action)).toThrow(TransitionError);
  });
});

test('which states are the last', () => {
  expect(Object.keys(LIFECYCLE.job).filter(hasEnded)).toEqual(['succeeded', 'failed', 'cancelled']);
  expect(hasEnded('constructor')).toBe(false);
});
