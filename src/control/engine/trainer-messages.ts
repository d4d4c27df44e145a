/** What the API process asks of a trainer in the engine process, and how it is answered. */
import type {
  AdapterFactors,
  AdapterWeights,
  OptimizerStep,
  RowRoom,
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
  /** Of `count` factors from `first` on, or as many as there are. */
  | { kind: 'state'; first: number; count: number }
  /** More of the state to begin with; then `begin`, once. */
  | { kind: 'load'; part: TrainerState }
  | { kind: 'begin' };

export interface TrainerAnswers {
  forward: RowScores;
  reference: null;
  backward: null;
  optimize: StepOutcome;
  state: TrainerState;
  load: null;
  begin: RowRoom;
}
export type TrainerAnswer = TrainerAnswers[keyof TrainerAnswers];

/** Of a message with more than one pair of factors: it takes about a millisecond to make. */
const PIECE_BYTES = 2 ** 20;

/** Rejects with a plain sentence, or with TrainerLostError. */
export type TrainerCall = (work: TrainerWork) => Promise<TrainerAnswer>;

/** Consecutive factors with their moments, as many as make one message. */
interface Piece {
  first: number;
  count: number;
}

function piecesOf(factors: readonly AdapterFactors[]): Piece[] {
  const pieces: Piece[] = [];
  let room = 0;
  factors.forEach(({ a, b }, first) => {
    const bytes = 3 * (a.byteLength + b.byteLength);
    const last = pieces.at(-1);
    if (last && bytes <= room) last.count++;
    else pieces.push({ first, count: 1 });
    room = (last && bytes <= room ? room : PIECE_BYTES) - bytes;
  });
  return pieces;
}

/** Brings an opened trainer its state, in pieces; one that cannot begin is closed. */
export async function openSession(call: TrainerCall, close: () => void, state: TrainerState): Promise<TrainerSession> {
  const { weights, optimizer } = state;
  const pieces = piecesOf(weights.factors);
  try {
    for (const { first, count } of pieces) {
      const factors = weights.factors.slice(first, first + count);
      const moments = optimizer?.moments.slice(first, first + count) ?? [];
      const part = {
        weights: { scale: weights.scale, factors },
        optimizer: optimizer && { steps: optimizer.steps, moments },
      };
      await call({ kind: 'load', part });
    }
    const room = (await call({ kind: 'begin' })) as RowRoom;
    return new CalledTrainerSession(call, close, pieces, room);
  } catch (error) {
    close();
    throw error;
  }
}

/** A session over whatever carries its calls. Adapters to compare with travel once. */
class CalledTrainerSession implements TrainerSession {
  readonly room: RowRoom;
  readonly #call: TrainerCall;
  readonly #close: () => void;
  readonly #pieces: readonly Piece[];
  readonly #references = new Map<AdapterWeights, number>();
  #closed = false;

  constructor(call: TrainerCall, close: () => void, pieces: readonly Piece[], room: RowRoom) {
    this.room = room;
    this.#call = call;
    this.#pieces = pieces;
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

  /** In pieces: a large message would hold up what serves, on either side. */
  async state(): Promise<TrainerState> {
    const parts: TrainerState[] = [];
    for (const piece of this.#pieces) parts.push(await this.#ask({ kind: 'state', ...piece }));
    return joined(parts);
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

/** Consecutive parts as one state. */
export function joined(pieces: TrainerState[]): TrainerState {
  const [first] = pieces;
  if (!first) throw new Error('A state has one piece at least.');
  const factors = pieces.flatMap(({ weights }) => weights.factors);
  const moments = pieces.flatMap(({ optimizer }) => optimizer?.moments ?? []);
  const { scale } = first.weights;
  return { weights: { scale, factors }, optimizer: first.optimizer && { steps: first.optimizer.steps, moments } };
}
