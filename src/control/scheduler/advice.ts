/** Steering from outside: what extensions wish before each token of their sequences. */
import type { StepControl } from '../engine/native.ts';
import type { SequenceRequest } from '../engine/protocol.ts';
import type { Sequence } from './sequence.ts';

/** Go on, with these controls for the next token; or end before it, well or badly. */
export type Advice = { control: Omit<StepControl, 'slot'> | null } | { stop: string | null } | { error: string };

/** Stands for one sequence; what it is belongs to the Adviser that opened it. */
export type SequenceAdviser = object;

export interface AdviceQuestion {
  adviser: SequenceAdviser;
  /** The output tokens so far; valid during the call. */
  outputs: Int32Array;
}

export interface Adviser {
  /** null: the request asks for no advice. Throws a sentence where it asks for what is not there. */
  open(request: SequenceRequest): SequenceAdviser | null;
  /** Parallel to `questions`. Never throws. */
  advise(questions: readonly AdviceQuestion[]): Advice[];
}

/** A sequence that ended between two steps: without a token, hence not by a result of the engine. */
export interface EndedSequence {
  id: number;
  /** Of a good end. */
  stopReason: string | null;
  /** null: a good end. */
  error: string | null;
}

function isAlive({ aborted, state }: Sequence): boolean {
  return !aborted && state !== 'done';
}

/**
 * Asks for advice once per token, before the step that samples it. The answer needs the tokens themselves: a sequence with an
 * adviser can only be planned when its last token has arrived.
 */
export class AdvisedSequences {
  readonly #adviser: Adviser | null;
  #ended: EndedSequence[] = [];

  constructor(adviser: Adviser | null) {
    this.#adviser = adviser;
  }

  attach(sequence: Sequence, request: SequenceRequest): void {
    sequence.adviser = this.#adviser?.open(request) ?? null;
  }

  /** Those of the sequences that must end before their next token; the others have their controls for it. */
  endings(sequences: readonly Sequence[]): Sequence[] {
    const asked = sequences.filter((each) => each.adviser && isAlive(each) && each.advisedAt !== each.known);
    if (asked.length === 0) return [];
    const questions = asked.map((sequence) => ({
      adviser: sequence.adviser as SequenceAdviser,
      outputs: sequence.tokens(sequence.promptLength, sequence.known),
    }));
    const advice = this.#adviser?.advise(questions) ?? [];
    return asked.filter((sequence, index) => this.#takeIn(sequence, advice[index] as Advice));
  }

  takeEnded(): EndedSequence[] {
    const ended = this.#ended;
    this.#ended = [];
    return ended;
  }

  /** True when the sequence ends. */
  #takeIn(sequence: Sequence, advice: Advice): boolean {
    sequence.advisedAt = sequence.known;
    sequence.control = null;
    if ('control' in advice) {
      sequence.control = advice.control;
      return false;
    }
    const { id } = sequence;
    if ('stop' in advice) this.#ended.push({ id, stopReason: advice.stop, error: null });
    else this.#ended.push({ id, stopReason: null, error: advice.error });
    return true;
  }
}
