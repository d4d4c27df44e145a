/**
 * Llama 4 and others: the output begins with a Python list of calls, `[f(a=1), g()]`, perhaps between `<|python_start|>` and
 * `<|python_end|>`; the values are literals. The list is all or nothing; its closing bracket may lack at the end of the output.
 */
import type { CallText } from './call-json.ts';
import type { DeltaWriter } from './delta-writer.ts';
import type { Input } from './input.ts';
import type { Machine } from './machine.ts';
import { PythonReader, PythonSyntaxError } from './python-literal.ts';

const START = '<|python_start|>';
const END = '<|python_end|>';
const NAME = /[A-Za-z_][A-Za-z_0-9.-]*/y;

/** Finds the end of a bracketed Python expression that comes in pieces, and sees early that a list is none of calls. */
class ListScanner {
  status: 'open' | 'done' | 'invalid' = 'open';
  #depth = 0;
  /** The first call's head, `[name(`, is checked at once: text often begins with a bracket. */
  #head: 'bracket' | 'nameStart' | 'name' | 'parenthesis' | 'passed' = 'bracket';
  /** '' outside of strings. */
  #quote = '';
  /** Quotes seen in a row that may open or close a triple quote. */
  #run = 0;
  #isTriple = false;
  #isEscaped = false;

  accept(character: string): boolean {
    if (this.#quote !== '' && this.#acceptInString(character)) return true;
    if (this.#head !== 'passed' && !this.#acceptHead(character)) this.status = 'invalid';
    else this.#acceptOutside(character);
    return this.status !== 'invalid';
  }

  #acceptHead(character: string): boolean {
    const isSpace = character.trim() === '';
    if (this.#head === 'bracket') this.#head = 'nameStart';
    else if (this.#head === 'nameStart') {
      if (isSpace) return true;
      this.#head = 'name';
      return /[A-Za-z_]/.test(character);
    } else if (character === '(') this.#head = 'passed';
    else if (isSpace) this.#head = 'parenthesis';
    else return this.#head === 'name' && /[A-Za-z_0-9.-]/.test(character);
    return true;
  }

  #acceptOutside(character: string): void {
    if (character === '"' || character === "'") {
      this.#quote = character;
      this.#run = 1;
      this.#isTriple = false;
    } else if ('([{'.includes(character)) this.#depth++;
    else if (')]}'.includes(character) && --this.#depth === 0) this.status = 'done';
  }

  /** False: the character is not the string's any more. */
  #acceptInString(character: string): boolean {
    if (this.#run > 0 && !this.#isTriple) return this.#acceptOpening(character);
    if (this.#isEscaped) this.#isEscaped = false;
    else if (character === this.#quote) {
      this.#run++;
      if (!this.#isTriple || this.#run === 3) this.#quote = '';
    } else {
      this.#run = 0;
      this.#isEscaped = character === '\\';
      if (character === '\n' && !this.#isTriple) this.status = 'invalid';
    }
    return true;
  }

  /** After the first quote: a second one makes an empty string, a third a triple quote. */
  #acceptOpening(character: string): boolean {
    if (character === this.#quote) {
      this.#run++;
      if (this.#run < 3) return true;
      this.#isTriple = true;
      this.#run = 0;
      return true;
    }
    if (this.#run === 2) {
      this.#quote = '';
      return false;
    }
    this.#run = 0;
    return this.#acceptInString(character);
  }
}

export class PythonicMachine implements Machine {
  #state: 'start' | 'list' | 'end' | 'text' | 'broken' = 'start';
  #held = '';
  #tagSeen = false;
  #list = '';
  readonly #scanner = new ListScanner();

  step(input: Input, out: DeltaWriter): boolean {
    if (this.#state === 'start') return this.#readStart(input, out);
    if (this.#state === 'list') return this.#readList(input, out);
    if (this.#state === 'end') return this.#readEnd(input);
    if (this.#state === 'text') out.content(input.takeAll());
    else out.verbatim(input.takeAll());
    return false;
  }

  #readStart(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeSpace();
    if (input.next === '[') {
      this.#state = 'list';
      return true;
    }
    const match = this.#tagSeen && !input.empty ? 'no' : input.take([START]);
    if (match === 'unsure') return false;
    if (match === 'no') return this.#break(out);
    this.#tagSeen = true;
    this.#held += START;
    return true;
  }

  #readList(input: Input, out: DeltaWriter): boolean {
    const scanner = this.#scanner;
    // A done or broken list takes nothing more: the predicate is asked before each character.
    this.#list += input.takeWhile((character) => scanner.status === 'open' && scanner.accept(character));
    if (scanner.status === 'open' && !input.ended) return false;
    const calls = this.#calls();
    if (!calls) {
      this.#held += this.#list;
      return this.#break(out);
    }
    for (const { name, json } of calls) out.call(name, json);
    this.#state = 'end';
    return true;
  }

  #calls(): CallText[] | null {
    if (this.#scanner.status === 'invalid') return null;
    return pythonCalls(this.#scanner.status === 'done' ? this.#list : `${this.#list}]`);
  }

  #readEnd(input: Input): boolean {
    input.takeSpace();
    const match = input.take([END]);
    if (match === 'unsure') return false;
    if (match === 'no') input.takeCutTag([END]);
    this.#state = 'text';
    return true;
  }

  #break(out: DeltaWriter): boolean {
    out.verbatim(this.#held);
    this.#held = '';
    this.#state = 'broken';
    return true;
  }
}

/** The calls of `[f(a=1), g()]`; null if the text is something else, or has none. */
function pythonCalls(text: string): CallText[] | null {
  try {
    const reader = new PythonReader(text);
    const calls: CallText[] = [];
    reader.expect('[');
    reader.items(']', () => calls.push(readCall(reader)));
    return reader.ended && calls.length > 0 ? calls : null;
  } catch (error) {
    if (error instanceof PythonSyntaxError) return null;
    throw error;
  }
}

function readCall(reader: PythonReader): CallText {
  const name = reader.match(NAME);
  if (name === null) throw new PythonSyntaxError('a call needs a name');
  const values = new Map<string, string>();
  reader.expect('(');
  reader.items(')', () => {
    const key = reader.match(/[\p{L}_][\p{L}\p{N}_]*/uy);
    if (key === null || values.has(key)) throw new PythonSyntaxError('arguments need names of their own');
    reader.expect('=');
    values.set(key, reader.literal());
  });
  const members = [...values].map(([key, value]) => `${JSON.stringify(key)}: ${value}`);
  return { name, json: `{${members.join(', ')}}` };
}
