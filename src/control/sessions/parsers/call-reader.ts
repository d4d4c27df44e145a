/** Reads one JSON object like {"name": "f", "arguments": {...}}, which comes in pieces, and hands its call out. */
import { callOf, nameOf } from './call-json.ts';
import type { DeltaWriter } from './delta-writer.ts';
import type { Input } from './input.ts';
import { type JsonMember, JsonScanner } from './json-scanner.ts';

/** When calls are handed out: as soon as their arguments begin, or when nothing can make them invalid any more. */
export type CallTiming = 'begun' | 'complete';

export class CallReader {
  /** What was read and not handed out. */
  held: string;
  readonly #argumentKeys: readonly string[];
  readonly #scanner: JsonScanner;
  /** `head`: nothing is known of a call yet; `whole`: the object is to be complete first. */
  #part: 'head' | 'whole' | 'arguments' | 'tail';
  /** The object, as far as it is in `head` or `whole`. */
  #text = '';
  /** What came of it behind the last whole member, and where that is: slices of the whole text would copy it again for each member. */
  #recent = '';
  #recentAt = 0;
  #name: string | null = null;

  /** `before`: what was read already, and goes with the object if that is no call. The first of `argumentKeys` holds the arguments. */
  constructor(timing: CallTiming, argumentKeys: readonly string[], before: string) {
    this.#argumentKeys = argumentKeys;
    this.#part = timing === 'begun' ? 'head' : 'whole';
    this.#scanner = new JsonScanner({ stopsAtMembers: timing === 'begun' });
    this.held = before;
  }

  /** Something of the call was handed out. */
  get isBegun(): boolean {
    return this.#part === 'arguments' || this.#part === 'tail';
  }

  /** Reads as much of the object as there is. */
  read(input: Input, out: DeltaWriter): JsonScanner['status'] {
    while (this.#scanner.status === 'open' && !input.empty) this.#take(input.feed(this.#scanner), out);
    return this.#scanner.status;
  }

  /** The object is complete. False: it is no call. */
  finish(out: DeltaWriter): boolean {
    if (this.#part === 'head' || this.#part === 'whole') {
      const call = callOf(this.#text, this.#scanner, this.#argumentKeys);
      if (!call) return false;
      out.call(call.name, call.json);
    }
    this.held = '';
    return true;
  }

  #take(piece: string, out: DeltaWriter): void {
    if (this.#part === 'arguments') {
      out.arguments(piece);
      if (!this.#scanner.openMember) this.#part = 'tail';
      return;
    }
    this.held += piece;
    if (this.#part === 'tail') {
      // What stands behind the arguments says nothing.
      if (this.#scanner.status === 'done') this.held = '';
      return;
    }
    this.#text += piece;
    if (this.#part === 'head' && this.#scanner.root !== '[') this.#begin(piece, out);
  }

  /** Where the name is known and an object begins as the arguments, nothing but its end is to be waited for. */
  #begin(piece: string, out: DeltaWriter): void {
    this.#recent += piece;
    const { openMember, members } = this.#scanner;
    const ended = members.at(-1);
    if (ended && ended.end > this.#recentAt) {
      if (this.#keyOf(ended) === 'name') this.#name = nameOf(this.#slice(ended.start, ended.end));
      this.#recent = this.#slice(ended.end);
      this.#recentAt = ended.end;
    }
    // Pieces end where a value begins, so only the one that brings its first character is looked at: values may be long.
    const isStart = openMember?.start === this.#recentAt + this.#recent.length - 1 && piece.endsWith('{');
    if (!openMember || !isStart || this.#name === null) return;
    if (!this.#argumentKeys.includes(this.#keyOf(openMember))) return;
    out.beginCall(this.#name);
    out.arguments('{');
    this.held = '';
    this.#part = 'arguments';
  }

  #keyOf({ keyStart, keyEnd }: JsonMember): string {
    return String(JSON.parse(this.#slice(keyStart, keyEnd)));
  }

  #slice(start: number, end?: number): string {
    return this.#recent.slice(start - this.#recentAt, end === undefined ? undefined : end - this.#recentAt);
  }
}
