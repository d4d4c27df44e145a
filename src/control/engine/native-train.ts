/**
 * The trainer's part of the native addon's surface. `native.ts` loads the addon; arguments are checked again in C++.
 * One piece of work at a time: forward, backward and optimize begin one, slice runs it until it says true.
 */
import type { NativeAdapter, NativeModel } from './native.ts';
import type { OptimizerStep, RowScores, StepOutcome, TrainerState, TrainRow } from './training.ts';

export interface TrainerOptions {
  /** Tokens of one row, 1..1048576: a longer one is refused before anything is allocated. */
  maxRowTokens: number;
  /** Memory that the activations and gradients of one row may take: a row that needs more is refused. */
  maxRowBytes: number;
  /** Keep only the layers' inputs and compute the rest again in backward: about a third slower, far less memory. The same bits. */
  recompute: boolean;
}

/** Every method but interrupt and close throws while a slice or state() is under way, and once closed. */
export interface NativeTrainer {
  /**
   * Begins the forward pass of a row: under the rounded current factors (kept for `backward`), without an adapter, or under another
   * (scores only). A root segment begins at position 0, a child at its parent's count.
   */
  forward(row: TrainRow, weights: 'current' | 'base' | NativeAdapter): void;
  /** Begins the backward pass of the row last forwarded with 'current', once per row. Gradients are 0 where there is no target. */
  backward(gradients: Float32Array): void;
  /** Begins one AdamW step over what backward gathered, and clears that; a kept row is forgotten. */
  optimize(step: OptimizerStep): void;
  /** Works for about that many microseconds, at least one unit; true when the work is done. Holds the model like an engine's step. */
  slice(micros: number): Promise<boolean>;
  /** The running slice ends with its unit of work. At any time; nothing where none runs. */
  interrupt(): void;
  /** Of the last finished forward pass. NaN where logits were not finite. */
  scores(): RowScores;
  /** Of the last finished optimizer step. */
  outcome(): StepOutcome;
  /**
   * A copy of the FP32 masters, moments and the step count, of `count` factors from `first` on. Not while an
   * optimizer step is begun and unfinished.
   */
  state(first?: number, count?: number): Promise<TrainerState>;
  /** Bytes that a row of one sequence of so many tokens takes. */
  rowBytes(tokens: number): number;
  /** The rounded factors of the last step, for engines of the same model: what a published checkpoint of them would load as. */
  adapter(): NativeAdapter;
  /** Idempotent; waits for a running slice. */
  close(): void;
}

export interface NativeTrainAddon {
  /** Rejects naming the factors that do not fit the model. */
  createTrainer(model: NativeModel, options: TrainerOptions, state: TrainerState): Promise<NativeTrainer>;
}
