/**
 * gpt-oss: messages on channels, `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`. The
 * prompt ends with `<|start|>assistant`, so the output begins inside a header. `analysis` and messages to other recipients
 * than functions are reasoning; `to=functions.f` is a call whose body is the arguments; all else is content.
 * The marks are special tokens: they are seen only when special tokens are kept in the text.
 */
import type { CallTiming } from './call-reader.ts';
import type { DeltaWriter } from './delta-writer.ts';
import type { Input } from './input.ts';
import { JsonScanner } from './json-scanner.ts';
import type { Machine } from './machine.ts';

const MESSAGE = '<|message|>';
const START = '<|start|>';
const CHANNEL = '<|channel|>';
const MESSAGE_ENDS = ['<|end|>', '<|return|>', '<|call|>', START, CHANNEL];
/** What a header may begin with. */
const HEADER_STARTS = [CHANNEL, START, '<|constrain|>', MESSAGE, 'assistant', 'to='];
const MARKS = [CHANNEL, START, MESSAGE, ...MESSAGE_ENDS];
const HEADER_LENGTH_MAX = 512;
const FUNCTIONS = 'functions.';

export class HarmonyMachine implements Machine {
  /** False: calls were not asked for, so their text is content. */
  readonly #callsAreOn: boolean;
  readonly #timing: CallTiming;
  #state: 'start' | 'header' | 'body' | 'call' | 'callEnd' | 'broken' = 'start';
  #header = '';
  #target: 'reasoning' | 'content' = 'content';
  #name = '';
  /** The call's text so far, its header included, without what was handed out. */
  #held = '';
  #isBegun = false;
  #json = '';
  #scanner = new JsonScanner();

  constructor(callsAreOn: boolean, timing: CallTiming) {
    this.#callsAreOn = callsAreOn;
    this.#timing = timing;
  }

  get inReasoning(): boolean {
    return this.#state === 'body' && this.#target === 'reasoning';
  }

  step(input: Input, out: DeltaWriter): boolean {
    switch (this.#state) {
      case 'start':
        return this.#readStart(input, out);
      case 'header':
        return this.#readHeader(input, out);
      case 'body':
        return this.#readBody(input, out);
      case 'call':
        return this.#readCall(input, out);
      case 'callEnd':
        return this.#readCallEnd(input, out);
      case 'broken':
        out.verbatim(input.takeAll());
        return false;
    }
  }

  /** Between messages. Text that begins no header is no harmony. */
  #readStart(input: Input, out: DeltaWriter): boolean {
    this.#header += input.takeSpace();
    if (input.empty) {
      this.#header = input.ended ? '' : this.#header;
      return false;
    }
    const match = input.take([...HEADER_STARTS, ...MESSAGE_ENDS]);
    if (match === 'unsure') return false;
    if (match === 'no') {
      if (input.takeCutTag(MARKS) !== null) return true;
      return this.#break(out, this.#header);
    }
    if (HEADER_STARTS.includes(match.tag)) {
      this.#header += match.tag;
      this.#state = 'header';
      if (match.tag === MESSAGE) this.#beginMessage();
    } else this.#header = '';
    return true;
  }

  #readHeader(input: Input, out: DeltaWriter): boolean {
    const { text, tag } = input.takeThrough([MESSAGE]);
    this.#header += text;
    if (this.#header.length > HEADER_LENGTH_MAX) return this.#break(out, this.#header + (tag ?? ''));
    if (tag !== null) {
      this.#header += tag;
      this.#beginMessage();
      return true;
    }
    if (!input.ended) return false;
    // A header that was cut says nothing; words alone were none.
    if (!this.#header.includes('<|')) out.verbatim(this.#header);
    this.#header = '';
    return false;
  }

  #beginMessage(): void {
    const recipient = /(?:^|[\s>])to=([^\s<]+)/.exec(this.#header)?.[1] ?? '';
    const channel = /<\|channel\|>\s*([a-z]+)/.exec(this.#header)?.[1] ?? '';
    const isCall = recipient.startsWith(FUNCTIONS) && recipient.length > FUNCTIONS.length && this.#callsAreOn;
    const isInternal = channel === 'analysis' || (recipient !== '' && !recipient.startsWith(FUNCTIONS));
    this.#target = isInternal ? 'reasoning' : 'content';
    this.#state = isCall ? 'call' : 'body';
    this.#name = recipient.slice(FUNCTIONS.length);
    this.#held = this.#header;
    this.#isBegun = false;
    this.#json = '';
    this.#scanner = new JsonScanner();
    this.#header = '';
  }

  #readBody(input: Input, out: DeltaWriter): boolean {
    const { text, tag } = input.takeBefore(MESSAGE_ENDS);
    if (this.#target === 'reasoning') out.reasoning(text);
    else out.content(text);
    if (tag !== null) this.#state = 'start';
    return tag !== null;
  }

  #readCall(input: Input, out: DeltaWriter): boolean {
    if (this.#json === '' && !this.#isBegun) {
      const space = input.takeSpace();
      this.#held += space;
      // No body at all: a call without arguments.
      if (input.next !== '{') return this.#readEmptyCall(input, out);
    }
    this.#take(input.feed(this.#scanner), out);
    if (this.#scanner.status === 'done') this.#state = 'callEnd';
    else if (this.#scanner.status === 'invalid' || input.ended) return this.#break(out, this.#held);
    else return false;
    return true;
  }

  #take(piece: string, out: DeltaWriter): void {
    if (out.timing(this.#timing) === 'complete') {
      this.#json += piece;
      this.#held += piece;
      return;
    }
    if (!this.#isBegun) out.beginCall(this.#name);
    out.arguments(piece);
    this.#isBegun = true;
    this.#held = '';
  }

  #readEmptyCall(input: Input, out: DeltaWriter): boolean {
    return this.#endCall(input, out, '{}');
  }

  #readCallEnd(input: Input, out: DeltaWriter): boolean {
    this.#held += input.takeSpace();
    return this.#endCall(input, out, this.#json);
  }

  /** Only an end of the message, or of the output, may follow the arguments. */
  #endCall(input: Input, out: DeltaWriter, json: string): boolean {
    const match = input.take(MESSAGE_ENDS);
    if (match === 'unsure') return false;
    if (match === 'no' && input.takeCutTag(MESSAGE_ENDS) === null) return this.#break(out, this.#held);
    if (!this.#isBegun) out.call(this.#name, json);
    this.#held = '';
    this.#state = 'start';
    const opensNext = typeof match === 'object' && (match.tag === START || match.tag === CHANNEL);
    if (opensNext) {
      this.#header = match.tag;
      this.#state = 'header';
    }
    return true;
  }

  #break(out: DeltaWriter, held: string): boolean {
    out.broken(held);
    this.#held = '';
    this.#header = '';
    this.#state = 'broken';
    return true;
  }
}
