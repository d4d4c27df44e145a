/** From the columns of a step message to the outputs of single sequences. */
import type { ForcedOutput } from '../scheduler/jumps.ts';
import { FINISH, type FinishCode, type StepResult } from './native.ts';
import type { FinishReason, SequenceOutput, StepMessage, TopLogprobs } from './protocol.ts';

const NOTHING: readonly never[] = [];
const NO_ALTERNATIVES: TopLogprobs = { ids: new Int32Array(0), logprobs: new Float32Array(0) };
const GRAMMAR_GAVE_UP =
  'The grammar cannot be followed any further: the text so far can be read in too many ways, or the grammar has been asked about more different ' +
  'numbers or orders of property names than it remembers. Write it with fewer ways to read a text, or ask for a shorter reply.';
const NOT_FINITE = 'The model produced numbers that are not finite; this sequence was ended.';

const REASONS: Readonly<Record<FinishCode, FinishReason | null>> = {
  [FINISH.none]: null,
  [FINISH.stopToken]: 'stop',
  [FINISH.length]: 'length',
  [FINISH.notFinite]: 'error',
  [FINISH.complete]: 'complete',
  [FINISH.noToken]: 'none_allowed',
  [FINISH.grammarFailed]: 'error',
};

/** Calls `deliver` for each sequence that the message brings something for; `cachedTokens` is the ledger's to fill in. */
export function forEachOutput(message: StepMessage, deliver: (output: SequenceOutput) => void): void {
  for (const { id, message: error } of message.refused) deliver(errorOutput(id, error));
  const { ids, promptIds, result } = message;
  if (ids && result) {
    if (promptIds && promptIds.length > 0) forEachPromptPiece(promptIds, result, deliver);
    const held = new Map(message.held.map(({ id, blocks }) => [id, blocks]));
    const forced = new Map(message.forced.map((output) => [output.id, output]));
    ids.forEach((id, row) => {
      if (id < 0) return;
      const blocks = held.get(id);
      const output = withForced(outputOf(id, row, result), forced.get(id));
      // Before the first of the sequence's tokens.
      forced.delete(id);
      deliver(blocks && result.finish[row] !== FINISH.none ? { ...output, blocks } : output);
    });
  }
  for (const { id, stopReason, error } of message.ended)
    deliver(error === null ? stopOutput(id, stopReason) : errorOutput(id, error));
}

/** Forced tokens come before the sampled one; a sequence that failed brings none. */
function withForced(output: SequenceOutput, forced: ForcedOutput | undefined): SequenceOutput {
  if (!forced || output.finish === 'error') return output;
  const tokens = [...forced.tokens, ...output.tokens];
  const logprobs = [...forced.logprobs, ...output.logprobs];
  const ranks = [...forced.ranks, ...output.ranks];
  return { ...output, tokens, logprobs, ranks, top: [...forced.top, ...output.top] };
}

function stopOutput(id: number, stopReason: string | null): SequenceOutput {
  return { ...emptyOutput(id), finish: 'stop', ...(stopReason === null ? {} : { stopReason }) };
}

export function errorOutput(id: number, error: string): SequenceOutput {
  return { ...emptyOutput(id), finish: 'error', error };
}

function emptyOutput(id: number): SequenceOutput {
  return { id, tokens: NOTHING, logprobs: NOTHING, ranks: NOTHING, top: NOTHING, finish: null, cachedTokens: 0 };
}

/** A sequence's scores lie together, in order of position. */
function forEachPromptPiece(ids: Float64Array, result: StepResult, deliver: (output: SequenceOutput) => void): void {
  for (let row = 0; row < ids.length;) {
    const id = ids[row] as number;
    let end = row + 1;
    while (end < ids.length && ids[end] === id) end++;
    if (id >= 0) deliver(promptOutput(id, row, end, result));
    row = end;
  }
}

function promptOutput(id: number, row: number, end: number, result: StepResult): SequenceOutput {
  const start = result.promptPositions[row] as number;
  const logprobs = result.promptLogprobs.slice(row, end);
  const ranks = result.promptRanks.slice(row, end);
  const top = Array.from({ length: end - row }, (_, index) => topOf(row + index, result.promptTopRanges, result));
  return { ...emptyOutput(id), promptLogprobs: { start, logprobs, ranks, top } };
}

/** Copies what it takes: the columns may be windows on a whole message, which an output in a slow reader's queue must not hold. */
function outputOf(id: number, row: number, result: StepResult): SequenceOutput {
  const code = result.finish[row] as FinishCode;
  const finish = REASONS[code];
  if (code === FINISH.grammarFailed) return { ...errorOutput(id, GRAMMAR_GAVE_UP), requestError: true };
  if (finish === 'error') return errorOutput(id, NOT_FINITE);
  if (finish === 'none_allowed') return { ...errorOutput(id, ''), finish };
  // Lists: a typed array of one number takes several times the memory.
  const tokens = [result.tokens[row] as number];
  const rank = result.ranks[row] as number;
  if (rank === 0) return { id, tokens, logprobs: NOTHING, ranks: NOTHING, top: NOTHING, finish, cachedTokens: 0 };
  const logprobs = [result.logprobs[row] as number];
  const top = [topOf(row, result.topRanges, result)];
  return { id, tokens, logprobs, ranks: [rank], top, finish, cachedTokens: 0 };
}

/** The alternatives of one row. */
export function topOf(row: number, ranges: Int32Array, result: StepResult): TopLogprobs {
  const offset = ranges[2 * row] as number;
  const end = offset + (ranges[2 * row + 1] as number);
  if (end === offset) return NO_ALTERNATIVES;
  return { ids: result.topIds.slice(offset, end), logprobs: result.topLogprobs.slice(offset, end) };
}
