/**
 * Mistral, three layouts after `[TOOL_CALLS]`: a JSON array of {"name", "arguments"}; `name{...}`; `name[ARGS]{...}`, perhaps
 * with `[CALL_ID]id` before [ARGS]. Each tag opens one call or one array. The end of the output may stand for the array's
 * closing bracket. (The tag is a special token: it is seen only when special tokens are kept in the text.)
 */
import { CallReader, type CallTiming } from './call-reader.ts';
import type { DeltaWriter } from './delta-writer.ts';
import type { Input } from './input.ts';
import { JsonScanner } from './json-scanner.ts';
import type { Machine } from './machine.ts';

const OPEN = '[TOOL_CALLS]';
const ARGUMENTS = '[ARGS]';
const CALL_ID = '[CALL_ID]';
const KEYS = ['arguments', 'parameters'];
const NAME_LENGTH_MAX = 256;

export class MistralMachine implements Machine {
  readonly #timing: CallTiming;
  #state: 'text' | 'head' | 'name' | 'element' | 'object' | 'between' | 'json' | 'broken' = 'text';
  /** All that was read since the tag, itself included, and not handed out. */
  #held = '';
  /** Of objects that hold their names: they stand in an array. */
  #inArray = false;
  #name = '';
  #nameIsRead = false;
  #isBegun = false;
  #scanner = new JsonScanner();
  #json = '';
  /** Of an object that holds its name. */
  #call: CallReader;

  constructor(timing: CallTiming) {
    this.#timing = timing;
    this.#call = this.#reader(timing);
  }

  step(input: Input, out: DeltaWriter): boolean {
    switch (this.#state) {
      case 'text':
        return this.#readText(input, out);
      case 'head':
        return this.#readHead(input, out);
      case 'name':
        return this.#readName(input, out);
      case 'element':
        return this.#readElement(input, out);
      case 'object':
        return this.#readObject(input, out);
      case 'between':
        return this.#readBetween(input, out);
      case 'json':
        return this.#readJson(input, out);
      case 'broken':
        out.verbatim(input.takeAll());
        return false;
    }
  }

  #readText(input: Input, out: DeltaWriter): boolean {
    const { text, tag } = input.takeThrough([OPEN]);
    out.content(text, tag?.length);
    if (tag === null) return false;
    this.#held = OPEN;
    this.#name = '';
    this.#nameIsRead = false;
    this.#isBegun = false;
    this.#json = '';
    this.#scanner = new JsonScanner();
    this.#state = 'head';
    return true;
  }

  #readHead(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeSpace();
    if (input.empty) return input.ended && this.#break(out);
    this.#inArray = input.next === '[';
    if (this.#inArray) this.#held += input.takeOne();
    if (this.#inArray) this.#state = 'element';
    else if (input.next === '{') this.#beginObject(out);
    else this.#state = 'name';
    return true;
  }

  #readElement(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeSpace();
    // At the end of the output, a comma behind a call is dropped.
    if (input.empty) return input.ended && this.#held.startsWith(OPEN) && this.#break(out);
    if (input.next !== '{') return this.#break(out);
    this.#beginObject(out);
    return true;
  }

  #beginObject(out: DeltaWriter): void {
    this.#state = 'object';
    this.#call = this.#reader(out.timing(this.#timing));
    this.#held = '';
  }

  #reader(timing: CallTiming): CallReader {
    return new CallReader(timing, KEYS, this.#held);
  }

  #readObject(input: Input, out: DeltaWriter): boolean {
    const status = this.#call.read(input, out);
    if (status === 'open' && !input.ended) return false;
    if (status === 'done' && this.#call.finish(out)) {
      this.#state = this.#inArray ? 'between' : 'text';
      return true;
    }
    this.#held = this.#call.held;
    return this.#break(out);
  }

  /** Behind an element: commas between calls are dropped, before other text they are text. */
  #readBetween(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeSpace();
    if (input.empty) return false;
    if (input.next !== ',' && input.next !== ']') return this.#break(out);
    const mark = input.takeOne();
    this.#held = mark === ',' ? this.#held + mark : '';
    this.#state = mark === ',' ? 'element' : 'text';
    return true;
  }

  #readName(input: Input, out: DeltaWriter): boolean {
    const { text, tag } = input.takeBefore(['{', ARGUMENTS, CALL_ID, OPEN]);
    this.#held += text;
    if (!this.#nameIsRead) this.#name += text;
    if (this.#name.length > NAME_LENGTH_MAX || tag === OPEN) return this.#break(out);
    if (tag === null) return input.ended && this.#break(out);
    if (tag !== '{') {
      input.take([tag]);
      this.#held += tag;
    }
    this.#nameIsRead = true;
    if (tag === CALL_ID) return true;
    this.#name = this.#name.trim();
    if (this.#name === '' || /\s/.test(this.#name)) return this.#break(out);
    this.#state = 'json';
    return true;
  }

  #readJson(input: Input, out: DeltaWriter): boolean {
    this.#take(input.feed(this.#scanner), out);
    if (this.#scanner.status === 'open' && !input.ended) return false;
    if (this.#scanner.status !== 'done' || this.#scanner.root !== '{') return this.#break(out);
    if (!this.#isBegun) out.call(this.#name, this.#json.trim());
    this.#state = 'text';
    return true;
  }

  #take(piece: string, out: DeltaWriter): void {
    if (this.#isBegun) return out.arguments(piece);
    this.#json += piece;
    this.#held += piece;
    if (out.timing(this.#timing) === 'complete' || this.#scanner.root !== '{') return;
    out.beginCall(this.#name);
    out.arguments(this.#json.trimStart());
    this.#held = '';
    this.#isBegun = true;
  }

  #break(out: DeltaWriter): boolean {
    out.broken(this.#held);
    this.#held = '';
    this.#state = 'broken';
    return true;
  }
}
