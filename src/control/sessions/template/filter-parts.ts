/** What filters share: their arguments, and how they look into values. */
import type { Value } from './jinja.ts';
import { TemplateError } from './errors.ts';
import { subscript } from './operators.ts';
import { strip } from './strings.ts';
import { box, boxKey, isArray, isObject, isString, isUndefined, toText } from './values.ts';

export interface Arguments {
  positional: Value[];
  keyword: Map<string, Value>;
}

/** undefined = not for this kind of operand: the library decides. */
export type Filter = (operand: Value, args: Arguments) => Value | undefined;

export function argument(args: Arguments, index: number, name: string): Value | undefined {
  return args.positional[index] ?? args.keyword.get(name);
}

export function isTrue(value: Value | undefined): boolean {
  return value?.__bool__().value === true;
}

/** What a value is ordered by: texts in lower case unless their case counts. */
export function rankOf(value: Value, exact: boolean): Value {
  return isString(value) && !exact ? box(value.value.toLowerCase()) : value;
}

/** NaN for a text that is no decimal number. */
export function numberOf(text: string): number {
  const digits = strip(text, null, 'both');
  return /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/.test(digits) ? Number(digits) : NaN;
}

/** `a.b` is a member of a member, `a.0` the first of a list. `otherwise` stands for each that is undefined, unless it is None. */
export function member(item: Value, path: Value, otherwise?: Value): Value {
  return toText(path)
    .split('.')
    .reduce((value, name, at, names) => {
      const key = box(/^\d+$/.test(name) ? Number(name) : name);
      const found = subscript(value, key, at === 0 ? 'an item' : names.slice(0, at).join('.'));
      return otherwise && otherwise.type !== 'NullValue' && isUndefined(found) ? otherwise : found;
    }, item);
}

/** What is false has no items, whatever it is. */
export function iterated(operand: Value): Value[] {
  if (!operand.__bool__().value) return [];
  if (isArray(operand)) return operand.value;
  if (isObject(operand)) return [...operand.value.keys()].map(boxKey);
  if (isString(operand)) return [...operand.value].map(box);
  throw new TemplateError(`a ${operand.type} has no items.`);
}
