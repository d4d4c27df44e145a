/** The unread text of an output that comes in pieces. What stays unread between pieces is never longer than a tag. */
import type { JsonScanner } from './json-scanner.ts';

/** no: it is something else; unsure: more text decides. */
export type Match = { tag: string } | 'no' | 'unsure';

export class Input {
  #text = '';
  #at = 0;
  /** Characters that came before `#text`. */
  #before = 0;
  #ended = false;

  append(text: string): void {
    this.#before += this.#at;
    this.#text = this.#at === this.#text.length ? text : this.#text.slice(this.#at) + text;
    this.#at = 0;
  }

  end(): void {
    this.#ended = true;
  }

  get ended(): boolean {
    return this.#ended;
  }

  /** Characters of the output that were taken. */
  get taken(): number {
    return this.#before + this.#at;
  }

  get empty(): boolean {
    return this.#at === this.#text.length;
  }

  /** The next character, '' if there is none yet. */
  get next(): string {
    return this.#text.charAt(this.#at);
  }

  takeAll(): string {
    return this.#takeTo(this.#text.length);
  }

  takeOne(): string {
    return this.#takeTo(this.#at + 1);
  }

  takeSpace(): string {
    return this.#takeTo(spaceEnd(this.#text, this.#at));
  }

  /** Takes characters as long as `wanted` has them. */
  takeWhile(wanted: (character: string) => boolean): string {
    let end = this.#at;
    while (end < this.#text.length && wanted(this.#text.charAt(end))) end++;
    return this.#takeTo(end);
  }

  /** Takes the text before the first of the tags; the tag stays. No tag: takes all but what may begin one. */
  takeBefore(tags: readonly string[]): { text: string; tag: string | null } {
    for (let at = this.#at; at < this.#text.length; at++) {
      const match = this.#matchAt(at, tags);
      if (match === 'no') continue;
      return { text: this.#takeTo(at), tag: match === 'unsure' ? null : match.tag };
    }
    return { text: this.takeAll(), tag: null };
  }

  /** As takeBefore, but takes the tag as well. */
  takeThrough(tags: readonly string[]): { text: string; tag: string | null } {
    const found = this.takeBefore(tags);
    if (found.tag !== null) this.#at += found.tag.length;
    return found;
  }

  /** Takes one of the tags if it comes next. */
  take(tags: readonly string[]): Match {
    const match = this.#matchAt(this.#at, tags);
    if (typeof match === 'object') this.#at += match.tag.length;
    return match;
  }

  /** At the end of the output: takes the rest if it is nothing or the cut beginning of one of the tags; else null. */
  takeCutTag(tags: readonly string[]): string | null {
    const rest = this.#text.slice(this.#at);
    return this.#ended && tags.some((tag) => tag.startsWith(rest)) ? this.takeAll() : null;
  }

  /** Lets the scanner read on; returns what it read. */
  feed(scanner: JsonScanner): string {
    return this.#takeTo(scanner.feed(this.#text, this.#at));
  }

  #takeTo(end: number): string {
    const taken = this.#text.slice(this.#at, end);
    this.#at = end;
    return taken;
  }

  #matchAt(at: number, tags: readonly string[]): Match {
    const left = this.#text.length - at;
    let unsure = false;
    for (const tag of tags) {
      if (this.#text.startsWith(tag, at)) return { tag };
      unsure ||= left < tag.length && this.#text.endsWith(tag.slice(0, left));
    }
    return unsure && !this.#ended ? 'unsure' : 'no';
  }
}

/** Index of the first character from `at` on that is not white space. */
export function spaceEnd(text: string, at: number): number {
  while (at < text.length && text.charAt(at).trim() === '') at++;
  return at;
}
