/** Functions of jinja2 whose values remember how often they were asked. */
import { TemplateError } from './errors.ts';
import type { Value } from './jinja.ts';
import { box, boxFunction, boxObject, isObject, type Key } from './values.ts';

/** `cycler('a', 'b')`: `next()` gives them in turn, `current` is what it gives next, `reset()` begins again. */
export function cycler(items: Value[]): Value {
  const [first] = items;
  if (!first || items.some(isNamed)) throw new TemplateError('cycler() takes one item at least, and no names.');
  let at = 0;
  const members = new Map<Key, Value>([['current', first]]);
  const go = (to: number): void => {
    at = to % items.length;
    members.set('current', items[at] ?? first);
  };
  const next = (): Value => {
    const current = items[at] ?? first;
    go(at + 1);
    return current;
  };
  const reset = (): Value => {
    go(0);
    return box(null);
  };
  return boxObject(members.set('next', boxFunction(next)).set('reset', boxFunction(reset)));
}

/** `joiner(', ')`: empty when it is called first, the text from then on. */
export function joiner(args: Value[]): Value {
  const [first = box(', ')] = args;
  const separator = isNamed(first) && isObject(first) ? first.value.get('sep') : first;
  if (!separator || args.length > 1) throw new TemplateError('joiner() takes one text, `sep`.');
  let isUsed = false;
  return boxFunction(() => {
    if (isUsed) return separator;
    isUsed = true;
    return box('');
  });
}

/** Among a function's arguments: those that were given by name. */
export function isNamed(value: Value): boolean {
  return value.type === 'KeywordArgumentsValue';
}
