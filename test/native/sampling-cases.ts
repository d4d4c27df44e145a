/** The cases of sampling-goldens.json and the table models that have their logits. */
import { readFileSync } from 'node:fs';
import type { SamplingSpec } from '../../src/control/engine/native.ts';
import { openModel, type OpenModel } from '../fixtures/engine-driver.ts';
import { hashUniform } from '../fixtures/hash-weights.ts';
import { writeTableModel } from '../fixtures/table-model.ts';

type Plain = Omit<Partial<SamplingSpec>, 'allowedIds' | 'badWords' | 'stopIds'>;

export interface SamplingCase extends Plain {
  name: string;
  /** Logits are rounded to multiples of this. */
  step?: number;
  prompt?: number[];
  output?: number[];
  bias?: [number, number][];
  allowedIds?: number[];
  badWords?: number[][];
  stopIds?: number[];
  /** What can be sampled, and how likely each is. */
  ids: number[];
  probabilities: number[];
}

export const samplingGoldens = JSON.parse(
  readFileSync(new URL('../goldens/sampling-goldens.json', import.meta.url), 'utf8'),
) as { vocab: number; filters: SamplingCase[]; controls: SamplingCase[] };

/** The byte tokenizer of the fixture needs 259 ids; those above the goldens' vocabulary have no chance. */
export const TABLE_VOCAB = 260;
export const IMPOSSIBLE = -1000;

export function logitsOf({ name, step }: SamplingCase): Float32Array {
  const logits = hashUniform(`sampling/${name}`, samplingGoldens.vocab, 0, 6);
  return step ? logits.map((value) => Math.round(value / step) * step) : logits;
}

/** A model with the same logits after every token. */
export async function openTable(directory: string, logits: Float32Array): Promise<OpenModel> {
  const fill = (_: number, row: Float32Array) => row.fill(IMPOSSIBLE).set(logits);
  writeTableModel(directory, { vocabSize: TABLE_VOCAB, logits: fill, fed: samplingGoldens.vocab });
  return openModel(directory, 'float32');
}

/** The case as native code wants it. */
export function specOf(sampling: SamplingCase): Partial<SamplingSpec> {
  const { name: _n, step: _s, prompt: _p, output: _o, ids: _i, probabilities: _q, ...rest } = sampling;
  const { bias, allowedIds, badWords, stopIds, ...plain } = rest;
  return {
    ...plain,
    temperature: plain.temperature ?? 1,
    ...(bias && {
      biasIds: Int32Array.from(bias, ([id]) => id),
      biasValues: Float32Array.from(bias, ([, value]) => value),
    }),
    ...(allowedIds && { allowedIds: Int32Array.from(allowedIds) }),
    ...(badWords && { badWords: badWords.map((ids) => Int32Array.from(ids)) }),
    ...(stopIds && { stopIds: Int32Array.from(stopIds) }),
  };
}

export function softmax(logits: ArrayLike<number>): number[] {
  const max = Math.max(...Array.from(logits));
  const weights = Array.from(logits, (value) => Math.exp(value - max));
  const total = weights.reduce((sum, value) => sum + value, 0);
  return weights.map((value) => value / total);
}
