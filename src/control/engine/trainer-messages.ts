/** What the API process asks of a trainer in the engine process, and how it is answered. */
import type {
  AdapterWeights,
  OptimizerStep,
  RowScores,
  StepOutcome,
  TrainerSession,
  TrainerState,
  TrainRow,
} from './training.ts';

export type TrainerWork =
  /** `adapter`: the key of one that `reference` has brought. */
  | { kind: 'forward'; row: TrainRow; weights: 'current' | 'base' | { adapter: number } }
  | { kind: 'reference'; key: number; weights: AdapterWeights }
  | { kind: 'backward'; gradients: Float32Array }
  | { kind: 'optimize'; step: OptimizerStep }
  | { kind: 'state' };

export interface TrainerAnswers {
  forward: RowScores;
  reference: null;
  backward: null;
  optimize: StepOutcome;
  state: TrainerState;
}
export type TrainerAnswer = TrainerAnswers[keyof TrainerAnswers];

/** Rejects with a plain sentence, or with TrainerLostError. */
export type TrainerCall = (work: TrainerWork) => Promise<TrainerAnswer>;

/** A session over whatever carries its calls. Adapters to compare with travel once. */
export class CalledTrainerSession implements TrainerSession {
  readonly #call: TrainerCall;
  readonly #close: () => void;
  readonly #references = new Map<AdapterWeights, number>();
  #closed = false;

  constructor(call: TrainerCall, close: () => void) {
    this.#call = call;
    this.#close = close;
  }

  async forward(row: TrainRow, weights: 'current' | 'base' | AdapterWeights): Promise<RowScores> {
    const under = typeof weights === 'string' ? weights : { adapter: await this.#reference(weights) };
    return this.#ask({ kind: 'forward', row, weights: under });
  }

  async backward(gradients: Float32Array): Promise<void> {
    await this.#ask({ kind: 'backward', gradients });
  }

  optimize(step: OptimizerStep): Promise<StepOutcome> {
    return this.#ask({ kind: 'optimize', step });
  }

  state(): Promise<TrainerState> {
    return this.#ask({ kind: 'state' });
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#references.clear();
    this.#close();
  }

  async #reference(weights: AdapterWeights): Promise<number> {
    const known = this.#references.get(weights);
    if (known !== undefined) return known;
    const key = this.#references.size;
    await this.#ask({ kind: 'reference', key, weights });
    this.#references.set(weights, key);
    return key;
  }

  async #ask<Work extends TrainerWork>(work: Work): Promise<TrainerAnswers[Work['kind']]> {
    if (this.#closed) throw new Error('The trainer is closed.');
    return (await this.#call(work)) as TrainerAnswers[Work['kind']];
  }
}
