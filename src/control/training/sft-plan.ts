/** The steps of an SFT job: one pass over the conversations in file order, one optimizer step per batch. */
import type { OptimizerStep } from '../engine/training.ts';
import { packRows, rowLengthFor, type PackedRow, type TrainSequence } from './pack.ts';
import type { JobPlan, StepContext, StepMetrics } from './plan.ts';
import { checkLearningRates, learningRateOf, type SftConfig } from './sft-config.ts';
import { parseConversation, readLines, type DataLine } from './sft-data.ts';
import type { SftTokenizer } from './sft-tokens.ts';

/** Opens the training data from its beginning. */
export type OpenData = () => AsyncIterable<Uint8Array>;

const OPTIMIZER: Omit<OptimizerStep, 'learningRate'> = {
  beta1: 0.9,
  beta2: 0.99,
  eps: 1e-8,
  weightDecay: 0,
  maxGradNorm: 1,
};

/** Counts lines without a look at them: they were checked when they came, and each is parsed when it is trained on. */
export async function createSftPlan(open: OpenData, config: SftConfig, tokenizer: SftTokenizer): Promise<SftPlan> {
  let conversations = 0;
  const lines = readLines(open());
  while (!(await lines.next()).done) conversations++;
  const steps = Math.ceil(conversations / config.batchSize);
  checkLearningRates(config, steps);
  return new SftPlan(new BatchReader(open, config.batchSize), config, tokenizer, steps);
}

class SftPlan implements JobPlan {
  readonly kind = 'sft';
  readonly steps: number;
  readonly summary: StepMetrics = {};
  readonly #reader: BatchReader;
  readonly #config: SftConfig;
  readonly #tokenizer: SftTokenizer;

  constructor(reader: BatchReader, config: SftConfig, tokenizer: SftTokenizer, steps: number) {
    this.#reader = reader;
    this.#config = config;
    this.#tokenizer = tokenizer;
    this.steps = steps;
  }

  prepare(): Promise<null> {
    return Promise.resolve(null);
  }

  async step(index: number, context: StepContext): Promise<StepMetrics> {
    const batch = await this.#reader.batch(index);
    const sequences: TrainSequence[] = [];
    let dropped = 0;
    for (const [i, line] of batch.entries()) {
      context.check();
      const sequence = await this.#tokenizer.sequence(parseConversation(line), i);
      if (!sequence) dropped++;
      else if (sequence.trainable.length > 0) sequences.push(sequence);
    }
    const learningRate = learningRateOf(this.#config, index);
    const outcome = await this.#train(sequences, learningRate, context);
    return {
      ...outcome,
      learning_rate: learningRate,
      num_trajectories: batch.length,
      num_dropped_trajectories: dropped,
      num_tokens: sequences.reduce((sum, { tokens }) => sum + tokens.length, 0),
      num_trainable_tokens: trainableTokens(sequences),
    };
  }

  close(): Promise<void> {
    return this.#reader.close();
  }

  /** Token mean over the whole batch. A batch without tokens to train changes nothing. */
  async #train(sequences: TrainSequence[], learningRate: number, context: StepContext): Promise<StepMetrics> {
    const tokens = trainableTokens(sequences);
    if (tokens === 0) return { loss: 0, grad_norm: 0 };
    const longest = sequences.reduce((length, sequence) => Math.max(length, sequence.tokens.length), 0);
    let loss = 0;
    for (const packed of packRows(sequences, rowLengthFor(longest, null), context.session.room)) {
      loss += await trainRow(packed, tokens, context);
    }
    context.check();
    const { gradNorm, applied } = await context.session.optimize({ ...OPTIMIZER, learningRate });
    return { loss, grad_norm: gradNorm, ...(applied ? {} : { skipped_step: 1 }) };
  }
}

/** The row's part of the batch's loss. */
async function trainRow(packed: PackedRow, tokens: number, { session, check }: StepContext): Promise<number> {
  check();
  const { logprobs } = await session.forward(packed.row, 'current');
  const gradients = new Float32Array(packed.row.tokens.length);
  let loss = 0;
  for (const at of packed.at) {
    loss -= (logprobs[at] ?? 0) / tokens;
    gradients[at] = -1 / tokens;
  }
  check();
  await session.backward(gradients);
  return loss;
}

function trainableTokens(sequences: readonly TrainSequence[]): number {
  return sequences.reduce((sum, { trainable }) => sum + trainable.length, 0);
}

/** Reads on from batch to batch; an earlier one, or one further on, is found from the beginning. */
class BatchReader {
  readonly #open: OpenData;
  readonly #size: number;
  #lines: AsyncGenerator<DataLine> | null = null;
  #next = 0;

  constructor(open: OpenData, size: number) {
    this.#open = open;
    this.#size = size;
  }

  async batch(index: number): Promise<DataLine[]> {
    if (!this.#lines || index < this.#next) {
      await this.close();
      this.#lines = readLines(this.#open());
      this.#next = 0;
    }
    while (this.#next < index) await this.#read();
    return this.#read();
  }

  async close(): Promise<void> {
    const lines = this.#lines;
    this.#lines = null;
    await lines?.return(undefined);
  }

  async #read(): Promise<DataLine[]> {
    const batch: DataLine[] = [];
    while (batch.length < this.#size) {
      const next = await this.#lines?.next();
      if (!next || next.done) break;
      batch.push(next.value);
    }
    this.#next++;
    return batch;
  }
}
