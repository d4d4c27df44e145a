/** Collects what a machine found as deltas: numbers calls, gives them ids, joins neighbouring pieces of text. */
import { spaceEnd } from './input.ts';
import type { ParsedDelta } from './output-parser.ts';

export interface DeltaWriterOptions {
  newCallId: () => string;
  /** false: only the first call is kept (parallel_tool_calls). */
  parallel: boolean;
}

export class DeltaWriter {
  readonly #options: DeltaWriterOptions;
  #deltas: ParsedDelta[] = [];
  /** White space at the start or after a call, which a call would swallow. */
  #space = '';
  #atEdge = true;
  #calls = 0;

  constructor(options: DeltaWriterOptions) {
    this.#options = options;
  }

  get calls(): number {
    return this.#calls;
  }

  reasoning(text: string): void {
    if (text === '') return;
    const last = this.#deltas.at(-1);
    if (last && 'reasoning' in last) last.reasoning += text;
    else this.#deltas.push({ reasoning: text });
  }

  content(text: string): void {
    if (this.#atEdge) {
      const end = spaceEnd(text, 0);
      this.#space += text.slice(0, end);
      if (end === text.length) return;
      text = text.slice(end);
    }
    this.verbatim(text);
  }

  /** Content that keeps its white space. */
  verbatim(text: string): void {
    const all = this.#space + text;
    this.#space = '';
    this.#atEdge = false;
    if (all === '') return;
    const last = this.#deltas.at(-1);
    if (last && 'content' in last) last.content += all;
    else this.#deltas.push({ content: all });
  }

  /** A complete call. */
  call(name: string, json: string): void {
    this.beginCall(name);
    this.arguments(json);
  }

  /** The first delta of a call; formats under a grammar send the first argument piece with it. */
  beginCall(name: string, json?: string): void {
    this.#space = '';
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
    if (this.#calls === 0 && this.#space !== '') this.verbatim('');
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
