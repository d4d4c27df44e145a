/** From the columns of a step message to the outputs of single sequences. */
import type { StepResult } from './native.ts';
import type { FinishReason, SequenceOutput, StepMessage, TopLogprobs } from './protocol.ts';

const NO_FLOATS = new Float32Array(0);
const NO_INTS = new Int32Array(0);
const NOT_FINITE = 'The model produced numbers that are not finite; this sequence was ended.';

/** FinishCode -> FinishReason. */
const REASONS: readonly (FinishReason | null)[] = [null, 'stop', 'length', 'error'];

/** Calls `deliver` once for each sequence that the message brings something for. */
export function forEachOutput(message: StepMessage, deliver: (output: SequenceOutput) => void): void {
  for (const { id, message: error } of message.refused) deliver(errorOutput(id, error));
  const { ids, result } = message;
  if (!ids || !result) return;
  ids.forEach((id, row) => {
    if (id >= 0) deliver(outputOf(id, row, result));
  });
}

export function errorOutput(id: number, error: string): SequenceOutput {
  return { id, tokens: NO_INTS, logprobs: NO_FLOATS, ranks: NO_INTS, top: [], finish: 'error', error, cachedTokens: 0 };
}

/** Copies what it takes: the columns may be windows on a whole message, which an output in a slow reader's queue must not hold. */
function outputOf(id: number, row: number, result: StepResult): SequenceOutput {
  const finish = REASONS[result.finish[row] ?? 0] ?? null;
  if (finish === 'error') return errorOutput(id, NOT_FINITE);
  const tokens = Int32Array.of(result.tokens[row] as number);
  const rank = result.ranks[row] as number;
  if (rank === 0) return { id, tokens, logprobs: NO_FLOATS, ranks: NO_INTS, top: [], finish, cachedTokens: 0 };
  const logprobs = Float32Array.of(result.logprobs[row] as number);
  return { id, tokens, logprobs, ranks: Int32Array.of(rank), top: [topOf(row, result)], finish, cachedTokens: 0 };
}

function topOf(row: number, result: StepResult): TopLogprobs {
  const offset = result.topRanges[2 * row] as number;
  const end = offset + (result.topRanges[2 * row + 1] as number);
  return { ids: result.topIds.slice(offset, end), logprobs: result.topLogprobs.slice(offset, end) };
}
