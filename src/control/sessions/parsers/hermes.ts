/**
 * Hermes, Qwen2.5, Qwen3: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, repeated. The end of the output, or the
 * next opening tag, may stand for the closing tag.
 */
import { CallReader, type CallTiming } from './call-reader.ts';
import type { DeltaWriter } from './delta-writer.ts';
import type { Input } from './input.ts';
import type { Machine } from './machine.ts';

const OPEN = '<tool_call>';
const CLOSE = '</tool_call>';

export class HermesMachine implements Machine {
  readonly #timing: CallTiming;
  #state: 'text' | 'json' | 'close' | 'broken' = 'text';
  /** Holds all since the opening tag, itself included, that was not handed out: content if the call proves broken. */
  #call: CallReader;

  constructor(timing: CallTiming) {
    this.#timing = timing;
    this.#call = this.#reader(timing);
  }

  step(input: Input, out: DeltaWriter): boolean {
    if (this.#state === 'text') return this.#readText(input, out);
    if (this.#state === 'json') return this.#readJson(input, out);
    if (this.#state === 'close') return this.#readClose(input, out);
    out.verbatim(input.takeAll());
    return false;
  }

  #readText(input: Input, out: DeltaWriter): boolean {
    const { text, tag } = input.takeThrough([OPEN]);
    out.content(text, tag?.length);
    if (tag !== null) this.#beginCall(out);
    return tag !== null;
  }

  #beginCall(out: DeltaWriter): void {
    this.#state = 'json';
    this.#call = this.#reader(out.timing(this.#timing));
  }

  #reader(timing: CallTiming): CallReader {
    return new CallReader(timing, ['arguments'], OPEN);
  }

  #readJson(input: Input, out: DeltaWriter): boolean {
    const status = this.#call.read(input, out);
    if (status === 'open') return input.ended && this.#break(out);
    if (status === 'invalid') return this.#break(out);
    this.#state = 'close';
    return true;
  }

  #readClose(input: Input, out: DeltaWriter): boolean {
    this.#call.held += input.takeSpace();
    const match = input.take([CLOSE, OPEN]);
    if (match === 'unsure') return false;
    if (match === 'no') {
      const cut = input.takeCutTag([CLOSE]);
      if (cut === null) return this.#break(out);
      this.#call.held += cut;
      this.#finishCall(out);
      return true;
    }
    if (match.tag === CLOSE) this.#call.held += CLOSE;
    const isCall = this.#finishCall(out, match.tag === OPEN ? OPEN.length : 0);
    if (match.tag === OPEN) {
      if (isCall) this.#beginCall(out);
      else out.verbatim(OPEN);
    }
    return true;
  }

  /** `behind`: characters that were taken after what is held. */
  #finishCall(out: DeltaWriter, behind = 0): boolean {
    if (!this.#call.finish(out)) {
      this.#break(out, behind);
      return false;
    }
    this.#state = 'text';
    return true;
  }

  #break(out: DeltaWriter, behind = 0): boolean {
    out.broken(this.#call.held, behind);
    this.#state = 'broken';
    return true;
  }
}
