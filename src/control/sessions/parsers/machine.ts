/** A format's state machine, and the parser that drives one. */
import { DeltaWriter, type DeltaWriterOptions } from './delta-writer.ts';
import { Input } from './input.ts';
import type { OutputParser, ParsedDelta } from './output-parser.ts';

export interface Machine {
  /**
   * Reads as far as the next decision. False: only more text leads on. With `input.ended` it must decide everything, until
   * the input is empty and nothing is held.
   */
  step(input: Input, out: DeltaWriter): boolean;
  readonly inReasoning?: boolean;
}

export class MachineParser implements OutputParser {
  readonly #machine: Machine;
  readonly #input = new Input();
  readonly #out: DeltaWriter;

  constructor(machine: Machine, options: DeltaWriterOptions) {
    this.#machine = machine;
    this.#out = new DeltaWriter(this.#input, options);
  }

  get inReasoning(): boolean {
    return this.#machine.inReasoning ?? false;
  }

  push(text: string): ParsedDelta[] {
    if (text === '') return [];
    this.#input.append(text);
    this.#run();
    return this.#out.drain();
  }

  finish(): ParsedDelta[] {
    this.#input.end();
    this.#run();
    this.#out.end();
    return this.#out.drain();
  }

  #run(): void {
    while (this.#machine.step(this.#input, this.#out));
  }
}

/** No markup at all: text goes through as it comes. */
export class PlainParser implements OutputParser {
  readonly inReasoning = false;
  #at = 0;

  push(text: string): ParsedDelta[] {
    if (text === '') return [];
    const at = this.#at;
    this.#at += text.length;
    return [{ content: text, at }];
  }

  finish(): ParsedDelta[] {
    return [];
  }
}
