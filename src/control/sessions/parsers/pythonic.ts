/**
 * Llama 4 and others: the output begins with a Python list of calls, `[f(a=1), g()]`, perhaps between `<|python_start|>` and
 * `<|python_end|>`; the values are literals. The list's closing bracket may lack at the end of the output. Text in brackets may look like a
 * call, as `[see(a=1) for more]` does: one whose name no tool has is a call only if a list goes on or ends behind it.
 */
import type { CallTiming } from './call-reader.ts';
import type { DeltaWriter } from './delta-writer.ts';
import type { Input } from './input.ts';
import type { Machine } from './machine.ts';
import { PythonLiteral } from './python-literal.ts';
import { isPythonSpace } from './python-strings.ts';

const START = '<|python_start|>';
const END = '<|python_end|>';
const KEY = /^[\p{L}_][\p{L}\p{N}_]*$/u;
/** Halves of characters too: what they make is looked at when the key is whole. */
const KEY_CHARACTER = /^[\p{L}\p{N}_\ud800-\udfff]$/u;

type State =
  | 'start'
  | 'element'
  | 'name'
  | 'parenthesis'
  | 'parameter'
  | 'key'
  | 'equals'
  | 'value'
  | 'afterValue'
  | 'afterCall'
  | 'end'
  | 'text'
  | 'broken';

export class PythonicMachine implements Machine {
  readonly #timing: CallTiming;
  /** By name. */
  readonly #tools: ReadonlyMap<string, unknown>;
  #state: State = 'start';
  /** What was read and not handed out. */
  #held = '';
  #tagSeen = false;
  #name = '';
  #keys = new Set<string>();
  #key = '';
  /** What stands before the value in JSON, until the value begins. */
  #label = '';
  #value = new PythonLiteral();
  /** The arguments, where the call is handed out when it is complete. */
  #json = '';
  /** Something of the call that is being read was handed out. */
  #isBegun = false;
  /** The text of a call that is complete, while it may be no call. */
  #pending = '';

  constructor(timing: CallTiming, tools: ReadonlyMap<string, unknown>) {
    this.#timing = timing;
    this.#tools = tools;
  }

  step(input: Input, out: DeltaWriter): boolean {
    switch (this.#state) {
      case 'start':
        return this.#readStart(input, out);
      case 'name':
        return this.#readName(input, out);
      case 'key':
        return this.#readKey(input, out);
      case 'value':
        return this.#readValue(input, out);
      case 'end':
        return this.#readEnd(input);
      case 'text':
        out.content(input.takeAll());
        return false;
      case 'broken':
        out.verbatim(input.takeAll());
        return false;
      default:
        return this.#readMark(input, out);
    }
  }

  #readStart(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeSpace();
    if (input.next === '[') return this.#pass(input, 'element');
    const match = this.#tagSeen && !input.empty ? 'no' : input.take([START]);
    if (match === 'unsure') return false;
    if (match === 'no') return this.#break(input, out);
    this.#tagSeen = true;
    this.#held += START;
    return true;
  }

  /** Where the next character that is no space decides. */
  #readMark(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeWhile(isPythonSpace);
    const isBetween = (this.#state === 'element' && out.calls > 0) || this.#state === 'afterCall';
    if (input.empty) return input.ended && (isBetween ? this.#endList(out) : this.#break(input, out));
    const { next } = input;
    if (isBetween && next === ']') {
      input.takeOne();
      return this.#endList(out);
    }
    if (this.#state === 'element') return this.#beginName();
    if (this.#state === 'afterCall' && next === ',') {
      this.#release(out);
      return this.#pass(input, 'element');
    }
    if (this.#state === 'parenthesis' && next === '(') return this.#beginCall(input);
    if ((this.#state === 'parameter' || this.#state === 'afterValue') && next === ')') return this.#endCall(input, out);
    if (this.#state === 'parameter') return this.#beginKey();
    if (this.#state === 'equals' && next === '=') return this.#beginValue(input, out);
    if (this.#state === 'afterValue' && next === ',') return this.#pass(input, 'parameter');
    return this.#break(input, out);
  }

  /** Takes the mark that leads on. */
  #pass(input: Input, state: State): boolean {
    this.#held += input.takeOne();
    this.#state = state;
    return true;
  }

  #beginName(): boolean {
    this.#name = '';
    this.#state = 'name';
    return true;
  }

  #readName(input: Input, out: DeltaWriter): boolean {
    const text = input.takeWhile((character) => /^[A-Za-z_0-9.-]$/.test(character));
    this.#held += text;
    this.#name += text;
    if (input.empty) return input.ended && this.#break(input, out);
    if (!/^[A-Za-z_]/.test(this.#name)) return this.#break(input, out);
    this.#state = 'parenthesis';
    return true;
  }

  #beginCall(input: Input): boolean {
    this.#keys = new Set();
    this.#json = '';
    return this.#pass(input, 'parameter');
  }

  #beginKey(): boolean {
    this.#key = '';
    this.#state = 'key';
    return true;
  }

  #readKey(input: Input, out: DeltaWriter): boolean {
    const text = input.takeWhile((character) => KEY_CHARACTER.test(character));
    this.#held += text;
    this.#key += text;
    if (input.empty) return input.ended && this.#break(input, out);
    this.#state = 'equals';
    return true;
  }

  #beginValue(input: Input, out: DeltaWriter): boolean {
    if (!KEY.test(this.#key) || this.#keys.has(this.#key)) return this.#break(input, out);
    this.#label = `${this.#keys.size === 0 ? '{' : ', '}${JSON.stringify(this.#key)}: `;
    this.#keys.add(this.#key);
    this.#value = new PythonLiteral();
    return this.#pass(input, 'value');
  }

  #readValue(input: Input, out: DeltaWriter): boolean {
    const value = this.#value;
    this.#held += input.takeWhile((character) => value.accept(character));
    const isLast = value.status !== 'open' || input.ended;
    const json = value.take(isLast);
    if (json !== '') {
      this.#tell(this.#label + json, out);
      this.#label = '';
    }
    if (this.#isBegun && this.#label === '') this.#held = value.held;
    if (!isLast) return false;
    if (value.status !== 'done') return this.#break(input, out);
    this.#state = 'afterValue';
    return true;
  }

  #tell(json: string, out: DeltaWriter): void {
    if (out.timing(this.#isOffered ? this.#timing : 'complete') === 'complete') {
      this.#json += json;
      return;
    }
    if (!this.#isBegun) out.beginCall(this.#name);
    this.#isBegun = true;
    out.arguments(json);
  }

  get #isOffered(): boolean {
    return this.#tools.has(this.#name);
  }

  #endCall(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeOne();
    this.#tell(this.#keys.size > 0 ? '}' : '{}', out);
    if (!this.#isBegun) this.#pending = this.#held;
    if (this.#isOffered) this.#release(out);
    this.#isBegun = false;
    this.#held = '';
    this.#state = 'afterCall';
    return true;
  }

  #release(out: DeltaWriter): void {
    if (this.#pending !== '') out.call(this.#name, this.#json);
    this.#pending = '';
  }

  #endList(out: DeltaWriter): boolean {
    this.#release(out);
    this.#held = '';
    this.#state = 'end';
    return true;
  }

  #readEnd(input: Input): boolean {
    input.takeSpace();
    const match = input.take([END]);
    if (match === 'unsure') return false;
    if (match === 'no') input.takeCutTag([END]);
    this.#state = 'text';
    return true;
  }

  #break(input: Input, out: DeltaWriter): boolean {
    // Of a call that is cut by the end of the output, what was not told is no content: it is not text of its own.
    const isCut = this.#isBegun && input.ended && input.empty;
    if (!isCut) out.broken(this.#pending + this.#held);
    this.#held = '';
    this.#state = 'broken';
    return true;
  }
}
