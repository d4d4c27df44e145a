/**
 * Qwen3-Coder: `<tool_call><function=NAME><parameter=KEY>\nVALUE\n</parameter>...</function></tool_call>`, repeated. Any closing
 * tag may lack, `<tool_call>` too. After `<function=NAME>` nothing can go wrong, so a call goes out parameter by parameter.
 * A parameter given twice appears twice: the later one counts for JSON readers.
 */
import type { DeltaWriter } from './delta-writer.ts';
import type { Input } from './input.ts';
import type { Machine } from './machine.ts';
import { type parameterSchemas, valueAsJson } from './schema-values.ts';

const OPEN = '<tool_call>';
const CLOSE = '</tool_call>';
const FUNCTION = '<function=';
const FUNCTION_END = '</function>';
const PARAMETER = '<parameter=';
const PARAMETER_END = '</parameter>';
const VALUE_ENDS = [PARAMETER_END, PARAMETER, FUNCTION_END, CLOSE];
const BODY_TAGS = [PARAMETER, FUNCTION_END, CLOSE, OPEN, FUNCTION];
const NAME_LENGTH_MAX = 256;

type Schemas = ReturnType<typeof parameterSchemas>;
type State = 'text' | 'opened' | 'name' | 'body' | 'key' | 'value' | 'closing' | 'broken';

export class Qwen3CoderMachine implements Machine {
  readonly #schemas: Schemas;
  #state: State = 'text';
  /** What was read of a call that may still prove broken. */
  #held = '';
  #name = '';
  #key = '';
  #value = '';
  #hasParameters = false;

  constructor(schemas: Schemas) {
    this.#schemas = schemas;
  }

  step(input: Input, out: DeltaWriter): boolean {
    switch (this.#state) {
      case 'text':
        return this.#readText(input, out);
      case 'opened':
        return this.#readOpened(input, out);
      case 'name':
        return this.#readName(input, out);
      case 'body':
        return this.#readBody(input, out);
      case 'key':
        return this.#readKey(input, out);
      case 'value':
        return this.#readValue(input, out);
      case 'closing':
        return this.#readClosing(input);
      case 'broken':
        out.verbatim(input.takeAll());
        return false;
    }
  }

  #readText(input: Input, out: DeltaWriter): boolean {
    const { text, tag } = input.takeThrough([OPEN, FUNCTION]);
    out.content(text, tag?.length);
    return tag !== null && this.#open(tag);
  }

  #open(tag: string): boolean {
    this.#held = tag;
    this.#name = '';
    return this.#go(tag === OPEN ? 'opened' : 'name');
  }

  #readOpened(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeSpace();
    const match = input.take([FUNCTION]);
    if (match === 'unsure') return false;
    if (match === 'no') return this.#break(out);
    this.#held += FUNCTION;
    return this.#go('name');
  }

  #readName(input: Input, out: DeltaWriter): boolean {
    const { text, tag } = input.takeThrough(['>']);
    this.#held += text + (tag ?? '');
    this.#name += text;
    if (this.#name.length > NAME_LENGTH_MAX) return this.#break(out);
    if (tag === null) return input.ended && this.#break(out);
    this.#name = this.#name.trim();
    if (this.#name === '' || this.#name.includes('\n')) return this.#break(out);
    out.beginCall(this.#name);
    this.#held = '';
    this.#hasParameters = false;
    return this.#go('body');
  }

  /** Between parameters; text that stands there is part of the markup and dropped. */
  #readBody(input: Input, out: DeltaWriter): boolean {
    const { tag } = input.takeThrough(BODY_TAGS);
    if (tag === PARAMETER) return this.#go('key');
    if (tag === null) {
      if (input.ended) this.#endCall(out);
      return input.ended;
    }
    this.#endCall(out);
    if (tag === OPEN || tag === FUNCTION) return this.#open(tag);
    return this.#go(tag === FUNCTION_END ? 'closing' : 'text');
  }

  #readKey(input: Input, out: DeltaWriter): boolean {
    const { text, tag } = input.takeThrough(['>']);
    this.#key += text;
    if (tag !== null) return this.#go('value');
    if (input.ended) this.#endCall(out);
    return input.ended;
  }

  #readValue(input: Input, out: DeltaWriter): boolean {
    const { text, tag } = input.takeBefore(VALUE_ENDS);
    this.#value += text;
    if (tag === null && !input.ended) return false;
    this.#writeParameter(out);
    if (tag === PARAMETER_END) input.take([PARAMETER_END]);
    return this.#go('body');
  }

  #writeParameter(out: DeltaWriter): void {
    const start = this.#value.startsWith('\n') ? 1 : 0;
    const end = this.#value.length > start && this.#value.endsWith('\n') ? -1 : undefined;
    const key = this.#key.trim();
    const json = valueAsJson(this.#value.slice(start, end), this.#schemas.get(this.#name), key);
    out.arguments(`${this.#hasParameters ? ', ' : '{'}${JSON.stringify(key)}: ${json}`);
    this.#hasParameters = true;
    this.#key = '';
    this.#value = '';
  }

  #endCall(out: DeltaWriter): void {
    out.arguments(this.#hasParameters ? '}' : '{}');
    this.#state = 'text';
  }

  /** After `</function>`: `</tool_call>` follows, or lacks. */
  #readClosing(input: Input): boolean {
    input.takeSpace();
    const match = input.take([CLOSE]);
    if (match === 'unsure') return false;
    if (match === 'no') input.takeCutTag([CLOSE]);
    return this.#go('text');
  }

  #go(state: State): boolean {
    this.#state = state;
    return true;
  }

  #break(out: DeltaWriter): boolean {
    out.broken(this.#held);
    this.#held = '';
    return this.#go('broken');
  }
}
