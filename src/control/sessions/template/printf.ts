/** Python's `%` of a text and values. */
import { TemplateError } from './errors.ts';
import type { Value } from './jinja.ts';
import { characters } from './strings.ts';
import {
  bounded,
  isArray,
  isNumber,
  isNumeric,
  isObject,
  isString,
  isTuple,
  isUndefined,
  MAX_WIDTH,
  toRepr,
  toText,
} from './values.ts';

const SPEC = /%(?:\(([^()]*)\))?([-+ 0#]*)(\*|\d+)?(?:\.(\*|\d*))?[hlL]?([^]?)/gu;
/** Digits behind the point, and of an integer. */
const MAX_DIGITS = 100;

interface Spec {
  flags: string;
  width: number;
  precision: number | null;
  kind: string;
}

/** The values in their order, or those of a dictionary by their names. */
class Values {
  readonly #all: Value;
  readonly #rest: Value[];
  #byName = false;

  constructor(all: Value) {
    this.#all = all;
    this.#rest = isTuple(all) ? [...all.value].reverse() : [all];
  }

  next(): Value {
    const value = this.#byName ? undefined : this.#rest.pop();
    if (!value) throw new TemplateError('not enough arguments for the format of a text.');
    return value;
  }

  named(name: string): Value {
    const value = isObject(this.#all) ? this.#all.value.get(name) : undefined;
    if (!value) throw new TemplateError(`the format of a text asks for ${JSON.stringify(name)}, which is not there.`);
    this.#byName = true;
    return value;
  }

  /** A list, a dictionary and what is undefined may stand there unused. */
  end(): void {
    const mayStay = !isTuple(this.#all) && (isArray(this.#all) || isObject(this.#all) || isUndefined(this.#all));
    if (this.#rest.length > 0 && !mayStay)
      throw new TemplateError('a text is formatted with more values than it asks for.');
  }
}

/** `written` makes a text out of what `%s` stands for. */
export function printf(format: string, all: Value, written: (value: Value) => string = toText): string {
  const values = new Values(all);
  let text = '';
  let at = 0;
  for (const found of format.matchAll(SPEC)) {
    const [whole, name, flags = '', width = '', precision, kind = ''] = found;
    text += format.slice(at, found.index);
    at = found.index + whole.length;
    if (kind === '%') text += '%';
    else {
      const [size, isLeft] = widthOf(width, values);
      const digits = precision === '*' ? Math.max(0, wholeNumber(values.next())) : Number(precision ?? 0);
      if (digits > MAX_DIGITS && kind !== 's')
        throw new TemplateError(`a number is formatted with at most ${MAX_DIGITS} digits.`);
      const spec = {
        flags: isLeft ? `${flags}-` : flags,
        width: size,
        precision: precision === undefined ? null : digits,
        kind,
      };
      text += padded(name === undefined ? values.next() : values.named(name), spec, written);
    }
    bounded(text);
  }
  values.end();
  return bounded(text + format.slice(at));
}

function wholeNumber(value: Value): number {
  if (value.type === 'IntegerValue' && Number.isSafeInteger(value.value)) return value.value as number;
  throw new TemplateError('"*" in a format wants a whole number.');
}

function widthOf(width: string, values: Values): [number, boolean] {
  const size = width === '*' ? wholeNumber(values.next()) : Number(width);
  if (Math.abs(size) > MAX_WIDTH) throw new TemplateError(`a format's width must be at most ${MAX_WIDTH}.`);
  return [Math.abs(size), size < 0];
}

function padded(value: Value, spec: Spec, written: (value: Value) => string): string {
  const { flags, width, kind } = spec;
  if (kind === 's' || kind === 'r' || kind === 'c') {
    const chars = characters(kind === 's' ? written(value) : kind === 'r' ? toRepr(value) : character(value));
    const cut = kind === 'c' ? chars : chars.slice(0, spec.precision ?? undefined);
    const text = typeof cut === 'string' ? cut : cut.join('');
    const room = ' '.repeat(Math.max(0, width - cut.length));
    return flags.includes('-') ? text + room : room + text;
  }
  const { sign, prefix, digits } = number(value, spec);
  const mark = sign || (flags.includes('+') ? '+' : flags.includes(' ') ? ' ' : '');
  const room = Math.max(0, width - mark.length - prefix.length - digits.length);
  if (flags.includes('-')) return mark + prefix + digits + ' '.repeat(room);
  if (flags.includes('0')) return mark + prefix + '0'.repeat(room) + digits;
  return ' '.repeat(room) + mark + prefix + digits;
}

function character(value: Value): string {
  if (isString(value) && characters(value.value).length === 1) return value.value;
  const code = value.type === 'IntegerValue' || value.type === 'BooleanValue' ? Number(value.value) : -1;
  if (code < 0 || code > 0x10ffff) throw new TemplateError('"%c" wants one character.');
  return String.fromCodePoint(code);
}

interface Written {
  sign: '' | '-';
  prefix: string;
  digits: string;
}

function number(value: Value, spec: Spec): Written {
  const { kind } = spec;
  if ('diuxXo'.includes(kind) && kind !== '') return integer(value, spec);
  if (!'eEfFgG'.includes(kind) || kind === '') throw new TemplateError(`the format "%${kind}" is not supported.`);
  if (!isNumeric(value)) throw new TemplateError(`"%${kind}" does not work with a ${value.type}.`);
  if (spec.flags.includes('#')) throw new TemplateError(`the format "%#${kind}" is not supported.`);
  const float = Number(value.value);
  const digits = floatDigits(Math.abs(float), spec.precision ?? 6, kind.toLowerCase());
  return {
    sign: float < 0 || Object.is(float, -0) ? '-' : '',
    prefix: '',
    digits: /[EFG]/.test(kind) ? digits.toUpperCase() : digits,
  };
}

const BASES: Readonly<Record<string, number>> = { x: 16, X: 16, o: 8 };

function integer(value: Value, { kind, flags, precision }: Spec): Written {
  const base = BASES[kind] ?? 10;
  const isWhole = value.type === 'IntegerValue' || value.type === 'BooleanValue';
  if (!isNumeric(value) || (base !== 10 && !isWhole))
    throw new TemplateError(`"%${kind}" does not work with a ${value.type}.`);
  const plain = isNumber(value) ? value.value : Number(value.value);
  if (typeof plain === 'number' && !Number.isFinite(plain))
    throw new TemplateError(`"%${kind}" does not work with infinity.`);
  const exact = BigInt(typeof plain === 'number' ? Math.trunc(plain) : plain);
  const digits = (exact < 0n ? -exact : exact).toString(base).padStart(precision ?? 0, '0');
  const prefix = flags.includes('#') && base !== 10 ? `0${kind}` : '';
  return { sign: exact < 0n ? '-' : '', prefix, digits: kind === 'X' ? digits.toUpperCase() : digits };
}

function floatDigits(value: number, precision: number, kind: string): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'nan' : 'inf';
  if (kind === 'f') return fixed(value, precision);
  if (kind === 'e') return exponential(value, precision);
  const significant = Math.max(1, precision);
  const { exponent } = rounded(value, significant);
  const isShort = exponent >= -4 && exponent < significant;
  const text = isShort ? fixed(value, significant - 1 - exponent) : exponential(value, significant - 1);
  const [digits = '', power] = text.split('e');
  const short = digits.includes('.') ? digits.replace(/\.?0+$/, '') : digits;
  return power === undefined ? short : `${short}e${power}`;
}

function fixed(value: number, precision: number): string {
  const { exponent } = exactDigits(value);
  const kept = rounded(value, exponent + 1 + precision);
  // The digits of the value times ten to the power of the precision.
  const all = (
    kept.digits === '' ? '0' : kept.digits + '0'.repeat(Math.max(0, kept.exponent + 1 + precision - kept.digits.length))
  ).padStart(precision + 1, '0');
  const point = all.length - precision;
  return precision === 0 ? all : `${all.slice(0, point)}.${all.slice(point)}`;
}

function exponential(value: number, precision: number): string {
  const { digits, exponent } = rounded(value, precision + 1);
  const all = digits.padEnd(precision + 1, '0');
  const power = `${exponent < 0 ? '-' : '+'}${String(Math.abs(exponent)).padStart(2, '0')}`;
  return `${all.slice(0, 1)}${precision > 0 ? `.${all.slice(1)}` : ''}e${power}`;
}

interface Decimal {
  /** The first is the one before the point, of the value over ten to the power of `exponent`. */
  digits: string;
  exponent: number;
}

/** As many as a middle between two rounded numbers can have. */
function exactDigits(value: number): Decimal {
  if (value >= Number.MAX_SAFE_INTEGER) {
    const digits = BigInt(value).toString();
    return { digits, exponent: digits.length - 1 };
  }
  const [mantissa = '', power = '0'] = value.toExponential(MAX_DIGITS).split('e');
  return { digits: mantissa.replace('.', ''), exponent: value === 0 ? 0 : Number(power) };
}

/** To so many digits; from the middle between two to the even one. */
function rounded(value: number, count: number): Decimal {
  const { digits, exponent } = exactDigits(value);
  if (count < 0) return { digits: '', exponent };
  if (count >= digits.length) return { digits, exponent };
  const [head, tail] = [digits.slice(0, count), digits.slice(count)];
  const isMiddle = /^50*$/.test(tail);
  const isOdd = /[13579]$/.test(head);
  if (tail.charAt(0) < '5' || (isMiddle && !isOdd)) return { digits: head, exponent };
  const up = (BigInt(`0${head}`) + 1n).toString().padStart(count, '0');
  return up.length > count
    ? { digits: count === 0 ? up : up.slice(0, count), exponent: exponent + 1 }
    : { digits: up, exponent };
}
