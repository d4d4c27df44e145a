/** Typed reads of one JSON object with errors that name file and field. */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { ModelError, UnsupportedModelError } from './errors.ts';
import type { JsonObject } from './json-file.ts';

export class Fields {
  readonly file: string;
  readonly #object: JsonObject;
  readonly #prefix: string;

  constructor(file: string, object: JsonObject, prefix = '') {
    this.file = file;
    this.#object = object;
    this.#prefix = prefix;
  }

  /** undefined and null both mean "not given", as in transformers. */
  get(name: string): unknown {
    return Object.hasOwn(this.#object, name) ? (this.#object[name] ?? undefined) : undefined;
  }

  has(name: string): boolean {
    return this.get(name) !== undefined;
  }

  names(): string[] {
    return Object.keys(this.#object);
  }

  label(name: string): string {
    return this.#prefix === '' ? name : `${this.#prefix}.${name}`;
  }

  fail(name: string, problem: string): never {
    throw new ModelError(this.file, `${this.label(name)} ${problem}`);
  }

  /** For what is no fault of the file. */
  unsupported(name: string, problem: string): never {
    throw new UnsupportedModelError(this.file, `${this.label(name)} ${problem}`);
  }

  integer(name: string, range: { min?: number; max: number; fallback?: number }): number {
    const value = this.get(name) ?? range.fallback;
    if (value === undefined) this.fail(name, 'is missing.');
    const min = range.min ?? 1;
    if (typeof value !== 'number' || !Number.isInteger(value) || value < min || value > range.max) {
      this.fail(name, `must be an integer in [${min}, ${range.max}], got ${show(value)}.`);
    }
    return value;
  }

  /** A finite number in the closed range. */
  number(name: string, range: { min: number; max: number; fallback?: number }): number {
    const value = this.get(name) ?? range.fallback;
    if (value === undefined) this.fail(name, 'is missing.');
    if (typeof value !== 'number' || !Number.isFinite(value) || value < range.min || value > range.max) {
      this.fail(name, `must be a number in [${range.min}, ${range.max}], got ${show(value)}.`);
    }
    return value;
  }

  boolean(name: string, fallback: boolean): boolean {
    const value = this.get(name) ?? fallback;
    if (typeof value !== 'boolean') this.fail(name, `must be true or false, got ${show(value)}.`);
    return value;
  }

  string(name: string): string | undefined {
    const value = this.get(name);
    if (value !== undefined && typeof value !== 'string') this.fail(name, `must be a string, got ${show(value)}.`);
    return value;
  }

  object(name: string): Fields | undefined {
    const value = this.get(name);
    if (value === undefined) return undefined;
    if (!isPlainObject(value)) this.fail(name, `must be an object, got ${show(value)}.`);
    return new Fields(this.file, value, this.label(name));
  }
}

/** A value in an error message, cut short: files may hold megabytes. */
export function show(value: unknown): string {
  // JSON would call NaN and infinities null.
  const text = (typeof value === 'number' ? undefined : JSON.stringify(value)) ?? String(value);
  return text.length > 80 ? `${text.slice(0, 80)}…` : text;
}
