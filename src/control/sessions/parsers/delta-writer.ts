/** Collects what a machine found as deltas: numbers calls, gives them ids, joins neighbouring pieces of text. */
import type { CallTiming } from './call-reader.ts';
import { spaceEnd, type Input } from './input.ts';
import { appendDelta, type ParsedDelta } from './output-parser.ts';

export interface DeltaWriterOptions {
  newCallId: () => string;
  /** false: only the first call is kept (parallel_tool_calls). */
  parallel: boolean;
}

export class DeltaWriter {
  readonly #input: Pick<Input, 'taken'>;
  readonly #options: DeltaWriterOptions;
  #deltas: ParsedDelta[] = [];
  /** White space at the start or after a call, which a call would swallow. */
  #space: { content: string; at: number }[] = [];
  #atEdge = true;
  #calls = 0;
  /** A call that was dropped broke off: nothing behind it can be told from its text. */
  #isOver = false;

  /** `input`: what the machine reads. */
  constructor(input: Pick<Input, 'taken'>, options: DeltaWriterOptions) {
    this.#input = input;
    this.#options = options;
  }

  get calls(): number {
    return this.#calls;
  }

  /** When the next call is to be handed out. One that is dropped counts as soon as it begins, in a stream and in a whole answer. */
  timing(timing: CallTiming): CallTiming {
    return this.#calls > 0 && !this.#options.parallel ? 'begun' : timing;
  }

  reasoning(text: string): void {
    if (text !== '') appendDelta(this.#deltas, { reasoning: text });
  }

  /** What was taken last of the input, but for the `behind` characters of marks that came after it. */
  content(text: string, behind = 0): void {
    const end = this.#atEdge ? spaceEnd(text, 0) : 0;
    if (end > 0) this.#space.push({ content: text.slice(0, end), at: this.#placeOf(text, behind) });
    if (end < text.length) this.verbatim(text.slice(end), behind);
  }

  /** Content that keeps its white space. */
  verbatim(text: string, behind = 0): void {
    if (this.#isOver) return;
    for (const space of this.#space) appendDelta(this.#deltas, space);
    this.#space = [];
    this.#atEdge = false;
    if (text !== '') appendDelta(this.#deltas, { content: text, at: this.#placeOf(text, behind) });
  }

  /** What was held of a call that is none, or broke off: content, unless the call was dropped. All behind it goes the same way. */
  broken(text: string, behind = 0): void {
    if (this.#muted) this.#isOver = true;
    else this.verbatim(text, behind);
  }

  #placeOf(text: string, behind: number): number {
    return this.#input.taken - behind - text.length;
  }

  /** A complete call. */
  call(name: string, json: string): void {
    this.beginCall(name);
    this.arguments(json);
  }

  /** The first delta of a call; formats under a grammar send the first argument piece with it. */
  beginCall(name: string, json?: string): void {
    this.#space = [];
    this.#atEdge = true;
    const index = this.#calls++;
    if (this.#muted) return;
    const first = { index, id: this.#options.newCallId(), name };
    this.#deltas.push({ toolCall: json === undefined ? first : { ...first, arguments: json } });
  }

  /** More of the newest call's arguments. */
  arguments(json: string): void {
    if (json !== '' && !this.#muted) this.#deltas.push({ toolCall: { index: this.#calls - 1, arguments: json } });
  }

  /** The output ended: white space that no call swallowed is content. */
  end(): void {
    if (this.#calls === 0 && this.#space.length > 0) this.verbatim('');
  }

  drain(): ParsedDelta[] {
    const deltas = this.#deltas;
    this.#deltas = [];
    return deltas;
  }

  get #muted(): boolean {
    return this.#calls > 1 && !this.#options.parallel;
  }
}
