/**
 * Outputs that a grammar enforces. Required: `[{"name": "f", "parameters": {...}}, ...]`, members in this order. Named: the
 * arguments alone. Both hand arguments out as they come; an output cut by its length limit leaves them cut, as the finish
 * reason tells.
 */
import { keyOf, nameOf } from './call-json.ts';
import type { DeltaWriter } from './delta-writer.ts';
import type { Input } from './input.ts';
import { JsonScanner } from './json-scanner.ts';
import type { Machine } from './machine.ts';

export class NamedMachine implements Machine {
  readonly #name: string;
  #began = false;

  constructor(name: string) {
    this.#name = name;
  }

  step(input: Input, out: DeltaWriter): boolean {
    const text = input.takeAll();
    if (this.#began) out.arguments(text);
    else if (text !== '' || input.ended) {
      out.beginCall(this.#name, text);
      this.#began = true;
    }
    return false;
  }
}

export class RequiredMachine implements Machine {
  #state: 'array' | 'head' | 'arguments' | 'tail' | 'between' | 'end' | 'broken' = 'array';
  /** What was read and is neither handed out nor done with. */
  #held = '';
  /** Reads one element. */
  #scanner = new JsonScanner({ stopsAtMembers: true });
  /** The element up to its arguments. */
  #head = '';

  step(input: Input, out: DeltaWriter): boolean {
    switch (this.#state) {
      case 'array':
        return this.#readPunctuation(input, out, ['[']);
      case 'between':
        return this.#readPunctuation(input, out, [',', ']']);
      case 'head':
        return this.#readHead(input, out);
      case 'arguments':
        return this.#readArguments(input, out);
      case 'tail':
        return this.#readTail(input, out);
      case 'end':
        input.takeSpace();
        if (!input.empty) this.#state = 'broken';
        return !input.empty;
      case 'broken':
        out.verbatim(input.takeAll());
        return false;
    }
  }

  #readPunctuation(input: Input, out: DeltaWriter, wanted: readonly string[]): boolean {
    this.#held += input.takeSpace();
    if (input.empty) return input.ended && this.#cut(out);
    const match = input.take(wanted);
    if (typeof match !== 'object') return this.#break(out);
    this.#held += match.tag;
    this.#state = match.tag === ']' ? 'end' : 'head';
    this.#head = '';
    this.#scanner = new JsonScanner({ stopsAtMembers: true });
    return true;
  }

  /** Stops where a member's value begins and ends: first the name's, then the arguments'. */
  #readHead(input: Input, out: DeltaWriter): boolean {
    const read = input.feed(this.#scanner);
    this.#held += read;
    this.#head += read;
    if (this.#scanner.status !== 'open' || this.#scanner.root === '[') return this.#break(out);
    const { openMember, members } = this.#scanner;
    const name = members[0];
    if (!name || !openMember) return input.empty ? input.ended && this.#cut(out) : true;
    if (keyOf(this.#head, name) !== 'name') return this.#break(out);
    const value = nameOf(this.#head.slice(name.start, name.end));
    const key = keyOf(this.#head, openMember);
    const first = this.#head.slice(openMember.start);
    if (value === null || (key !== 'parameters' && key !== 'arguments') || first !== '{') return this.#break(out);
    out.beginCall(value, first);
    this.#held = '';
    this.#state = 'arguments';
    return true;
  }

  #readArguments(input: Input, out: DeltaWriter): boolean {
    out.arguments(input.feed(this.#scanner));
    if (this.#scanner.status === 'invalid') return this.#break(out);
    if (this.#scanner.openMember) return input.ended && this.#cut(out);
    this.#state = 'tail';
    return true;
  }

  /** Members after the arguments say nothing. */
  #readTail(input: Input, out: DeltaWriter): boolean {
    this.#held += input.feed(this.#scanner);
    if (this.#scanner.status === 'invalid') return this.#break(out);
    if (this.#scanner.status === 'open') return input.empty ? input.ended && this.#cut(out) : true;
    this.#held = '';
    this.#state = 'between';
    return true;
  }

  /** The output ended too early: cut markup is no content, also where there is no call. */
  #cut(out: DeltaWriter): boolean {
    this.#held = '';
    return this.#break(out);
  }

  #break(out: DeltaWriter): boolean {
    out.verbatim(this.#held);
    this.#held = '';
    this.#state = 'broken';
    return true;
  }
}
