/** `loop` within a loop. */
import { TemplateError } from './errors.ts';
import type { Scope, Value } from './jinja.ts';
import { isNamed } from './stateful.ts';
import { box, boxFunction, boxObject, boxTuple, isEqual } from './values.ts';

export interface LoopPlace {
  items: readonly Value[];
  index: number;
  /** 1 for a loop that no call of its own `loop` has begun. */
  depth: number;
  /** The same in all turns of a loop. */
  changed: Value;
}

/** `loop.changed(a, b)`: whether these are other values than those of the call before. */
export function changedValue(): Value {
  let last: Value | null = null;
  return boxFunction((args) => {
    if (args.some(isNamed)) throw new TemplateError('loop.changed() takes no names.');
    const values = boxTuple(args);
    const isChanged = last === null || !isEqual(last, values);
    last = values;
    return box(isChanged);
  });
}

/** Of a recursive loop it is a function, which `again` is. */
export function loopValue(place: LoopPlace, again: ((args: Value[], scope: Scope) => Value) | null): Value {
  const entries = new Map(loopEntries(place));
  if (again === null) return boxObject(entries);
  // Of its own: the library's values without members share one map, in whichever template they are.
  return Object.defineProperty(boxFunction(again), 'builtins', { value: entries });
}

function loopEntries({ items, index, depth, changed }: LoopPlace): [string, Value][] {
  const left = items.length - index;
  return [
    ['index', box(index + 1)],
    ['index0', box(index)],
    ['revindex', box(left)],
    ['revindex0', box(left - 1)],
    ['first', box(index === 0)],
    ['last', box(left === 1)],
    ['length', box(items.length)],
    ['depth', box(depth)],
    ['depth0', box(depth - 1)],
    ['previtem', items[index - 1] ?? box(undefined)],
    ['nextitem', items[index + 1] ?? box(undefined)],
    ['changed', changed],
    ['cycle', boxFunction((args) => args[index % Math.max(1, args.length)] ?? box(undefined))],
  ];
}
