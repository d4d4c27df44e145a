/**
 * `<think>reasoning</think>` before everything else; what follows belongs to the parser behind. Without a start tag, generated
 * or in the prompt, there is no reasoning: all is content. A start tag without an end means that all is reasoning.
 */
import { Input } from './input.ts';
import type { OutputParser, ParsedDelta } from './output-parser.ts';

const START = '<think>';
const END = '</think>';
const CALL = '<tool_call>';
const FUNCTION = '<function';
/** What tells thoughts from the rest. */
export const THOUGHT_TAGS: readonly string[] = [START, END];

export interface ThinkParserOptions {
  /** The prompt ends inside the thoughts; a start tag that is generated again is dropped. */
  startsInReasoning: boolean;
  /** Qwen3: a `<tool_call><function` ends the thoughts as well. */
  callEndsReasoning: boolean;
}

export class ThinkParser implements OutputParser {
  readonly #options: ThinkParserOptions;
  readonly #rest: OutputParser;
  readonly #input = new Input();
  #state: 'start' | 'thoughts' | 'perhapsCall' | 'done' = 'start';
  /** White space before a start tag, or markup that may be a call. */
  #held = '';
  #deltas: ParsedDelta[] = [];
  /** Where the text of the parser behind begins; null: it has none yet. */
  #restAt: number | null = null;

  constructor(options: ThinkParserOptions, rest: OutputParser) {
    this.#options = options;
    this.#rest = rest;
  }

  get inReasoning(): boolean {
    if (this.#state === 'start') return this.#options.startsInReasoning;
    return this.#state !== 'done' || this.#rest.inReasoning;
  }

  push(text: string): ParsedDelta[] {
    if (text === '') return [];
    this.#input.append(text);
    return this.#run();
  }

  finish(): ParsedDelta[] {
    this.#input.end();
    return [...this.#run(), ...this.#ofRest(this.#rest.finish())];
  }

  #run(): ParsedDelta[] {
    while (this.#step());
    const deltas = this.#deltas;
    this.#deltas = [];
    return deltas;
  }

  #step(): boolean {
    if (this.#state === 'start') return this.#readStart();
    if (this.#state === 'thoughts') return this.#readThoughts();
    if (this.#state === 'perhapsCall') return this.#readPerhapsCall();
    this.#pass(this.#input.takeAll());
    return false;
  }

  #readStart(): boolean {
    this.#held += this.#input.takeSpace();
    const match = this.#input.take([START]);
    if (match === 'unsure') return false;
    if (match !== 'no') this.#state = 'thoughts';
    else if (this.#options.startsInReasoning) {
      this.#think(this.#held);
      this.#state = 'thoughts';
    } else {
      this.#pass(this.#held);
      this.#state = 'done';
    }
    this.#held = '';
    return true;
  }

  #readThoughts(): boolean {
    const { text, tag } = this.#input.takeThrough(this.#options.callEndsReasoning ? [END, CALL] : [END]);
    this.#think(text);
    if (tag === END) this.#state = 'done';
    if (tag === CALL) {
      this.#held = CALL;
      this.#state = 'perhapsCall';
    }
    return tag !== null;
  }

  #readPerhapsCall(): boolean {
    this.#held += this.#input.takeSpace();
    const match = this.#input.take([FUNCTION]);
    if (match === 'unsure') return false;
    if (match === 'no') {
      this.#think(this.#held);
      this.#state = 'thoughts';
    } else {
      this.#pass(this.#held + FUNCTION);
      this.#state = 'done';
    }
    this.#held = '';
    return true;
  }

  #think(text: string): void {
    if (text !== '') this.#deltas.push({ reasoning: text });
  }

  #pass(text: string): void {
    if (text === '') return;
    this.#restAt ??= this.#input.taken - text.length;
    this.#deltas.push(...this.#ofRest(this.#rest.push(text)));
  }

  #ofRest(deltas: ParsedDelta[]): ParsedDelta[] {
    for (const delta of deltas) if ('content' in delta && delta.at !== undefined) delta.at += this.#restAt ?? 0;
    return deltas;
  }
}

/** Drops the reasoning (include_reasoning: false); inReasoning still tells where it is. */
export class WithoutReasoning implements OutputParser {
  readonly #parser: OutputParser;

  constructor(parser: OutputParser) {
    this.#parser = parser;
  }

  get inReasoning(): boolean {
    return this.#parser.inReasoning;
  }

  push(text: string): ParsedDelta[] {
    return this.#parser.push(text).filter((delta) => !('reasoning' in delta));
  }

  finish(): ParsedDelta[] {
    return this.#parser.finish().filter((delta) => !('reasoning' in delta));
  }
}

export type PromptReasoning = 'none' | 'open' | 'closed';

/**
 * Where thoughts stand at the end of the text that the prompt gives the reply: what the template wrote after the last
 * message's header, or the content of the message that is continued. Give no text of users: it may hold tags of its own.
 */
export function promptReasoning(replyStart: string): PromptReasoning {
  const opened = replyStart.lastIndexOf(START);
  const closed = replyStart.lastIndexOf(END);
  if (opened < 0 && closed < 0) return 'none';
  return opened > closed ? 'open' : 'closed';
}

/** The same for a whole rendered prompt that ends with a generation prompt: only tags at its very end count. */
export function promptReasoningAtEnd(prompt: string): PromptReasoning {
  const text = prompt.trimEnd();
  if (text.endsWith(START)) return 'open';
  return text.endsWith(END) ? 'closed' : 'none';
}
