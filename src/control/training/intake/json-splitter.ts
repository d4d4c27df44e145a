/**
 * Cuts a large JSON object into parts that fit in memory: every top-level field, and of one field (an array) every element by itself.
 * Bytes are scanned once; what a part means is left to JSON.parse. The text outside of parts is checked here.
 */
import { hasLoneSurrogate } from '../../../schemas/lone-surrogate.ts';
import { shorten } from '../../../schemas/shorten.ts';
import { invalid, type ValidationError } from '../../../schemas/validation-error.ts';
import { parseWithTools } from '../tool-numbers.ts';

export interface SplitterLimits {
  /** Bytes of all fields but the array together, their names included: they are held in memory until the body ends. */
  maxFieldBytes: number;
  /** Bytes of one element of the array. */
  maxElementBytes: number;
  maxDepth: number;
}

export interface SplitterSink {
  field(key: string, value: unknown): void;
  /** Elements come in order; the next one waits for the promise. `text`: the JSON that the value is of. */
  element(index: number, value: unknown, text: string): Promise<void> | void;
}

type State =
  | 'start'
  | 'key-or-end'
  | 'key'
  | 'colon'
  | 'value'
  | 'element-or-end'
  | 'element'
  | 'after-value'
  | 'after-element'
  | 'end';

const QUOTE = 0x22;
const BACKSLASH = 0x5c;

export class JsonSplitter {
  readonly #arrayKey: string;
  readonly #limits: SplitterLimits;
  readonly #sink: SplitterSink;
  #state: State = 'start';
  #key = '';
  /** Of the fields so far. */
  #fieldBytes = 0;
  #index = 0;
  /** Whether the array's field has begun. */
  sawArray = false;
  /** Bytes before the current chunk. */
  #offset = 0;
  readonly #part = new Part();

  constructor(arrayKey: string, limits: SplitterLimits, sink: SplitterSink) {
    this.#arrayKey = arrayKey;
    this.#limits = limits;
    this.#sink = sink;
  }

  /** Takes the next bytes; they may be reused after the promise. */
  async push(chunk: Uint8Array): Promise<void> {
    let at = this.#offset === 0 && chunk[0] === 0xef && chunk[1] === 0xbb && chunk[2] === 0xbf ? 3 : 0;
    while (at < chunk.length) {
      if (this.#part.open) {
        at = await this.#goOn(chunk, at);
        continue;
      }
      const byte = chunk[at] ?? 0;
      if (!isSpace(byte)) {
        if (this.#structure(byte, this.#offset + at)) at++;
      } else {
        at++;
      }
    }
    this.#offset += chunk.length;
  }

  /** Throws where the text ends too early. */
  finish(): void {
    if (this.#state !== 'end') throw this.#broken(this.#offset, 'the body ends too early');
  }

  /** One byte outside of parts. False where it begins a part, which takes it. */
  #structure(byte: number, at: number): boolean {
    switch (this.#state) {
      case 'start':
        return this.#expect(byte, '{', 'key-or-end', at);
      case 'key-or-end':
        if (byte === 0x7d) return this.#to('end');
        return this.#begin('key', byte === QUOTE, at);
      case 'key':
        return this.#begin('key', byte === QUOTE, at);
      case 'colon':
        return this.#expect(byte, ':', 'value', at);
      case 'value':
        if (this.#key === this.#arrayKey && byte === 0x5b) return this.#openArray();
        return this.#begin('value', beginsValue(byte), at);
      case 'element-or-end':
        if (byte === 0x5d) return this.#to('after-value');
        return this.#begin('element', beginsValue(byte), at);
      case 'element':
        return this.#begin('element', beginsValue(byte), at);
      case 'after-value':
        if (byte === 0x7d) return this.#to('end');
        return this.#expect(byte, ',', 'key', at);
      case 'after-element':
        if (byte === 0x5d) return this.#to('after-value');
        return this.#expect(byte, ',', 'element', at);
      case 'end':
        throw this.#broken(at, 'something follows the body');
    }
  }

  #openArray(): boolean {
    if (this.sawArray) throw invalid(['body', this.#arrayKey], 'The field is given twice.');
    this.sawArray = true;
    return this.#to('element-or-end');
  }

  #begin(state: 'key' | 'value' | 'element', legal: boolean, at: number): false {
    if (!legal) throw this.#broken(at, 'unexpected character');
    this.#state = state;
    const { maxElementBytes, maxFieldBytes, maxDepth } = this.#limits;
    const maxBytes = state === 'element' ? maxElementBytes : maxFieldBytes - this.#fieldBytes;
    this.#part.begin(maxBytes, maxDepth);
    return false;
  }

  #to(state: State): true {
    this.#state = state;
    return true;
  }

  #expect(byte: number, char: string, next: State, at: number): true {
    if (byte !== char.charCodeAt(0)) throw this.#broken(at, `expected '${char}'`);
    return this.#to(next);
  }

  /** Goes on with the open part; returns where the text after it begins. */
  async #goOn(chunk: Uint8Array, from: number): Promise<number> {
    const loc = this.#loc();
    const end = this.#part.scan(chunk, from);
    if (this.#part.tooDeep)
      throw invalid(loc, `The value is nested deeper than ${this.#limits.maxDepth}.`, 'json_invalid');
    if (this.#part.tooLong) throw invalid(loc, this.#tooLong(), 'json_invalid');
    if (this.#part.open) return end;
    if (this.#state !== 'element') this.#fieldBytes += this.#part.bytes;
    const { text, value } = this.#part.parse(loc);
    if (this.#state === 'key') {
      this.#key = String(value);
      this.#state = 'colon';
    } else if (this.#state === 'value') {
      this.#sink.field(this.#key, value);
      this.#state = 'after-value';
    } else {
      await this.#sink.element(this.#index++, value, text);
      this.#state = 'after-element';
    }
    return end;
  }

  #tooLong(): string {
    const { maxElementBytes, maxFieldBytes } = this.#limits;
    return this.#state === 'element'
      ? `The value has more than ${maxElementBytes} bytes.`
      : `The fields beside ${this.#arrayKey} have more than ${maxFieldBytes} bytes.`;
  }

  #loc(): (string | number)[] {
    if (this.#state === 'key') return ['body'];
    return this.#state === 'value' ? ['body', shorten(this.#key, 64)] : ['body', this.#arrayKey, this.#index];
  }

  #broken(at: number, what: string): ValidationError {
    return invalid(['body', at], `JSON decode error: ${what}`, 'json_invalid');
  }
}

/** The bytes of one value, which may come in several chunks. */
class Part {
  open = false;
  /** Of what was taken. */
  bytes = 0;
  #chunks: Uint8Array[] = [];
  #maxBytes = 0;
  #maxDepth = 0;
  #depth = 0;
  #inString = false;
  #escaped = false;
  /** A number or a word ends where something else begins. */
  #bare = false;

  begin(maxBytes: number, maxDepth: number): void {
    this.open = true;
    this.bytes = 0;
    this.#chunks = [];
    this.#maxBytes = maxBytes;
    this.#maxDepth = maxDepth;
    this.#depth = 0;
    this.#inString = false;
    this.#escaped = false;
    this.#bare = false;
  }

  get tooDeep(): boolean {
    return this.#depth > this.#maxDepth;
  }

  get tooLong(): boolean {
    return this.bytes > this.#maxBytes;
  }

  /** Returns the first byte behind what was taken. Beyond a bound nothing is kept: whoever asks must look at `tooDeep` and `tooLong`. */
  scan(chunk: Uint8Array, from: number): number {
    let at = from;
    while (at < chunk.length && this.open && !this.tooDeep) {
      at = this.#inString ? this.#scanString(chunk, at) : this.#scanByte(chunk[at] ?? 0, at);
    }
    this.bytes += at - from;
    // A copy: the chunk's memory is used again.
    if (!this.tooDeep && !this.tooLong) this.#chunks.push(chunk.slice(from, at));
    return at;
  }

  #scanString(chunk: Uint8Array, from: number): number {
    let at = from;
    for (; at < chunk.length; at++) {
      const byte = chunk[at];
      if (this.#escaped) this.#escaped = false;
      else if (byte === BACKSLASH) this.#escaped = true;
      else if (byte === QUOTE) {
        this.#inString = false;
        if (this.#depth === 0) this.open = false;
        return at + 1;
      }
    }
    return at;
  }

  #scanByte(byte: number, at: number): number {
    if (this.#bare && (isSpace(byte) || byte === 0x2c || byte === 0x5d || byte === 0x7d)) {
      this.open = false;
      return at;
    }
    if (byte === QUOTE) this.#inString = true;
    else if (byte === 0x5b || byte === 0x7b) this.#depth++;
    else if (byte === 0x5d || byte === 0x7d) {
      if (--this.#depth === 0) this.open = false;
    } else if (this.#depth === 0) this.#bare = true;
    return at + 1;
  }

  parse(loc: (string | number)[]): { text: string; value: unknown } {
    const bytes = this.#chunks.length === 1 ? this.#chunks[0] : Buffer.concat(this.#chunks);
    this.#chunks = [];
    let text: string;
    let value: unknown;
    try {
      text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
      value = parseWithTools(text);
    } catch (error) {
      const why = error instanceof SyntaxError ? error.message.slice(0, 160) : 'not valid UTF-8';
      throw invalid(loc, `JSON decode error: ${why}`, 'json_invalid');
    }
    if (hasLoneSurrogate(text, value)) throw invalid(loc, 'A string has a lone surrogate.', 'json_invalid');
    return { text, value };
  }
}

function isSpace(byte: number): boolean {
  return byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;
}

/** `"`, `{`, `[`, `-`, a digit, or the first letter of true, false and null (and of NaN and Infinity, which JSON.parse refuses). */
function beginsValue(byte: number): boolean {
  return (
    byte === QUOTE ||
    byte === 0x7b ||
    byte === 0x5b ||
    byte === 0x2d ||
    (byte >= 0x30 && byte <= 0x39) ||
    isLetter(byte)
  );
}

function isLetter(byte: number): boolean {
  return (byte >= 0x41 && byte <= 0x5a) || (byte >= 0x61 && byte <= 0x7a);
}
