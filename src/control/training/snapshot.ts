/** A running job between two steps, as pieces of bytes: everything that the rest of the job depends on. */
import type { RowRoom, TrainerState } from '../engine/training.ts';
import { readState, stateMetadata, stateTensors } from './state-files.ts';
import { encodeTensors, type TensorFile } from './tensor-file.ts';

export interface JobSnapshot {
  /** Steps taken. */
  step: number;
  /** The model's step that the job started from. */
  modelStep: number;
  state: TrainerState;
  /** What the job's rows were packed for; null: not yet packed. */
  room: RowRoom | null;
  /** Log-probabilities that were computed before the first step, one array for the whole job; null: none. */
  logprobs: Float32Array | null;
  /** Sums and counts of the metrics of the steps taken. */
  totals: Record<string, [sum: number, count: number]>;
}

const LOGPROBS = 'precalculated_logprobs';

export function encodeSnapshot({ step, modelStep, state, room, logprobs, totals }: JobSnapshot): Iterable<Uint8Array> {
  const own = logprobs ? [{ name: LOGPROBS, shape: [logprobs.length], values: logprobs }] : [];
  return encodeTensors({
    tensors: [...stateTensors(state), ...own],
    metadata: {
      ...stateMetadata(state),
      step: String(step),
      model_step: String(modelStep),
      room: JSON.stringify(room),
      totals: JSON.stringify(totals),
    },
  });
}

export function decodeSnapshot(file: TensorFile): JobSnapshot {
  return {
    step: Number(file.metadata['step']),
    modelStep: Number(file.metadata['model_step']),
    state: readState(file),
    room: JSON.parse(file.metadata['room'] ?? 'null') as RowRoom | null,
    logprobs: file.tensors.find(({ name }) => name === LOGPROBS)?.values ?? null,
    totals: JSON.parse(file.metadata['totals'] ?? '{}') as JobSnapshot['totals'],
  };
}
