/** jinja2's tests on runtime values: `x is defined`, `x is divisibleby(3)`, and by name in filters such as select. */
import { TemplateError } from './errors.ts';
import type { Value } from './jinja.ts';
import { compare, contains, counted } from './operators.ts';
import {
  box,
  isArray,
  isEqual,
  isNumeric,
  isObject,
  isString,
  isUndefined,
  marked,
  remainder,
  toText,
} from './values.ts';

type Test = (value: Value) => boolean;
type Comparison = (value: Value, other: Value) => boolean;

const isIterable: Test = (value) => isArray(value) || isObject(value) || isString(value) || isUndefined(value);
const rest = (value: Value, divisor: Value): number =>
  Number(remainder(counted('%', value), counted('%', divisor)).value);
const leaves =
  (wanted: number): Test =>
  (value) =>
    rest(value, box(2)) === wanted;

const TESTS: Readonly<Record<string, Test>> = Object.assign(Object.create(null), {
  iterable: isIterable,
  sequence: isIterable,
  float: (value: Value) => value.type === 'FloatValue',
  number: isNumeric,
  integer: (value: Value) => value.type === 'IntegerValue',
  boolean: (value: Value) => value.type === 'BooleanValue',
  true: (value: Value) => value.value === true,
  false: (value: Value) => value.value === false,
  string: isString,
  mapping: isObject,
  callable: (value: Value) => value.type === 'FunctionValue',
  none: (value: Value) => value.type === 'NullValue',
  defined: (value: Value) => !isUndefined(value),
  undefined: isUndefined,
  escaped: (value: Value) => marked.has(value),
  test: (value: Value) =>
    isString(value) && (value.value === 'filter' || value.value in TESTS || value.value in COMPARISONS),
  even: leaves(0),
  odd: leaves(1),
  lower: (value: Value) => isCased(toText(value)) && toText(value) === toText(value).toLowerCase(),
  upper: (value: Value) => isCased(toText(value)) && toText(value) === toText(value).toUpperCase(),
});

const isNotEqual: Comparison = (value, other) => !isEqual(value, other);
const isAbove: Comparison = (value, other) => compare(value, other) > 0;
const isBelow: Comparison = (value, other) => compare(value, other) < 0;
const isAtLeast: Comparison = (value, other) => compare(value, other) >= 0;
const isAtMost: Comparison = (value, other) => compare(value, other) <= 0;

const COMPARISONS: Readonly<Record<string, Comparison>> = Object.assign(Object.create(null), {
  eq: isEqual,
  equalto: isEqual,
  '==': isEqual,
  ne: isNotEqual,
  '!=': isNotEqual,
  gt: isAbove,
  greaterthan: isAbove,
  '>': isAbove,
  lt: isBelow,
  lessthan: isBelow,
  '<': isBelow,
  ge: isAtLeast,
  '>=': isAtLeast,
  le: isAtMost,
  '<=': isAtMost,
  in: (value: Value, other: Value) => contains(other, value),
  divisibleby: (value: Value, other: Value) => rest(value, other) === 0,
  sameas: isSame,
});

/** Throws for a test that is not there, or another number of arguments than it takes. */
export function passes(name: string, value: Value, args: readonly Value[]): boolean {
  const [test, comparison] = [TESTS[name], COMPARISONS[name]];
  const [other] = args;
  if (!test && !comparison) throw new TemplateError(`the test ${JSON.stringify(name)} is not supported.`);
  if (test && !other) return test(value);
  if (comparison && other && args.length === 1) return comparison(value, other);
  throw new TemplateError(`the test ${JSON.stringify(name)} takes ${test ? 'no argument' : 'one argument'}.`);
}

function isCased(text: string): boolean {
  return text.toLowerCase() !== text.toUpperCase();
}

/** Lists and dictionaries are the same where they are one; None, booleans, numbers and texts where they are equal and of one type. */
function isSame(a: Value, b: Value): boolean {
  if (typeof a.value === 'object' && a.value !== null) return a.value === b.value;
  return a === b || (!isUndefined(a) && a.type === b.type && a.value === b.value);
}
