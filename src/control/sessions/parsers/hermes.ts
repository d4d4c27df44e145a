/**
 * Hermes, Qwen2.5, Qwen3: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, repeated. The end of the output, or the
 * next opening tag, may stand for the closing tag.
 */
import { callOf } from './call-json.ts';
import type { DeltaWriter } from './delta-writer.ts';
import type { Input } from './input.ts';
import { JsonScanner } from './json-scanner.ts';
import type { Machine } from './machine.ts';

const OPEN = '<tool_call>';
const CLOSE = '</tool_call>';

export class HermesMachine implements Machine {
  #state: 'text' | 'json' | 'close' | 'broken' = 'text';
  /** All that was read since the opening tag, itself included: content if the call proves broken. */
  #held = '';
  #scanner = new JsonScanner();
  #json = '';

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
    if (tag !== null) this.#beginCall();
    return tag !== null;
  }

  #beginCall(): void {
    this.#state = 'json';
    this.#held = OPEN;
    this.#json = '';
    this.#scanner = new JsonScanner();
  }

  #readJson(input: Input, out: DeltaWriter): boolean {
    const read = input.feed(this.#scanner);
    this.#json += read;
    this.#held += read;
    if (this.#scanner.status === 'open') return input.ended && this.#break(out);
    if (this.#scanner.status === 'invalid') return this.#break(out);
    this.#state = 'close';
    return true;
  }

  #readClose(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeSpace();
    const match = input.take([CLOSE, OPEN]);
    if (match === 'unsure') return false;
    if (match === 'no') {
      const cut = input.takeCutTag([CLOSE]);
      if (cut === null) return this.#break(out);
      this.#held += cut;
      this.#finishCall(out);
      return true;
    }
    if (match.tag === CLOSE) this.#held += CLOSE;
    const isCall = this.#finishCall(out, match.tag === OPEN ? OPEN.length : 0);
    if (match.tag === OPEN) {
      if (isCall) this.#beginCall();
      else out.verbatim(OPEN);
    }
    return true;
  }

  /** `behind`: characters that were taken after what is held. */
  #finishCall(out: DeltaWriter, behind = 0): boolean {
    const call = callOf(this.#json, this.#scanner, ['arguments']);
    if (!call) {
      this.#break(out, behind);
      return false;
    }
    out.call(call.name, call.json);
    this.#held = '';
    this.#state = 'text';
    return true;
  }

  #break(out: DeltaWriter, behind = 0): boolean {
    out.verbatim(this.#held, behind);
    this.#held = '';
    this.#state = 'broken';
    return true;
  }
}
