/**
 * Llama 3.x: JSON objects with `name` and `parameters` (or `arguments`), separated by "; ", each perhaps after
 * `<|python_tag|>`. Any `{` may begin one. What is no JSON is text, and the search goes on behind the character that broke
 * it (never back, so the work stays linear); a JSON object that is no call makes all the rest content.
 */
import { CallReader, type CallTiming } from './call-reader.ts';
import type { DeltaWriter } from './delta-writer.ts';
import type { Input } from './input.ts';
import type { Machine } from './machine.ts';

const PYTHON_TAG = '<|python_tag|>';

export class Llama3JsonMachine implements Machine {
  readonly #timing: CallTiming;
  #state: 'text' | 'tagged' | 'json' | 'between' | 'broken' = 'text';
  /** A tag, and what follows it before any JSON. */
  #held = '';
  #call: CallReader;

  constructor(timing: CallTiming) {
    this.#timing = timing;
    this.#call = this.#reader(timing);
  }

  step(input: Input, out: DeltaWriter): boolean {
    switch (this.#state) {
      case 'text':
        return this.#readText(input, out);
      case 'tagged':
        return this.#readTagged(input, out);
      case 'json':
        return this.#readJson(input, out);
      case 'between':
        return this.#readBetween(input, out);
      case 'broken':
        out.verbatim(input.takeAll());
        return false;
    }
  }

  #readText(input: Input, out: DeltaWriter): boolean {
    const { text, tag } = input.takeBefore([PYTHON_TAG, '{']);
    out.content(text);
    return tag !== null && this.#begin(input, out, tag);
  }

  #begin(input: Input, out: DeltaWriter, tag: string): boolean {
    if (tag === '{') return this.#beginJson(out);
    input.take([PYTHON_TAG]);
    this.#held += PYTHON_TAG;
    this.#state = 'tagged';
    return true;
  }

  #beginJson(out: DeltaWriter): boolean {
    this.#state = 'json';
    this.#call = this.#reader(out.timing(this.#timing));
    this.#held = '';
    return true;
  }

  #reader(timing: CallTiming): CallReader {
    return new CallReader(timing, ['parameters', 'arguments'], this.#held);
  }

  #readTagged(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeSpace();
    if (input.next === '{') return this.#beginJson(out);
    return (!input.empty || input.ended) && this.#release(out);
  }

  #readJson(input: Input, out: DeltaWriter): boolean {
    const status = this.#call.read(input, out);
    if (status === 'open' && !input.ended) return false;
    if (status !== 'done') {
      if (this.#call.isBegun) out.broken(this.#call.held);
      else this.#held = this.#call.held;
      return this.#release(out);
    }
    this.#state = 'between';
    if (this.#call.finish(out)) return true;
    out.broken(this.#call.held);
    this.#state = 'broken';
    return true;
  }

  /** What was held is text, and the search goes on. */
  #release(out: DeltaWriter): boolean {
    out.verbatim(this.#held);
    this.#held = '';
    this.#state = 'text';
    return true;
  }

  /** Separators between calls are dropped; before other text they are text. */
  #readBetween(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeWhile((character) => character === ';' || character.trim() === '');
    if (input.next === '{') {
      this.#held = '';
      return this.#beginJson(out);
    }
    const match = input.take([PYTHON_TAG]);
    if (match === 'unsure') return false;
    if (match === 'no') {
      if (input.empty) return false;
      return this.#release(out);
    }
    this.#held = PYTHON_TAG;
    this.#state = 'tagged';
    return true;
  }
}
