/** Whose a step's results are. */
import { FINISH, type StepResult } from '../engine/native.ts';
import { type ForcedOutput, scoreForced } from './jumps.ts';
import type { PlannedStep } from './plan.ts';
import type { Sequence } from './sequence.ts';

/** Results that finish so bring no token. */
const WITHOUT_TOKEN: ReadonlySet<number> = new Set([FINISH.notFinite, FINISH.noToken, FINISH.grammarFailed]);

/** Whose each row of a step's results is, -1 for those that nobody waits for. */
export interface ResultOwners {
  /** Parallel to `slots`. */
  ids: Float64Array;
  /** Parallel to `promptSlots`. */
  promptIds: Float64Array;
  /** What was forced before the results' tokens. */
  forced: ForcedOutput[];
}

/** The results of one sampling row. */
export interface RowResults {
  row: number;
  sequence: Sequence;
  begin: number;
  end: number;
}

/** The results of each sampling row: none where the step was planned ahead and the one before it, which has been applied, ended the sequence. */
export function rowResults(step: PlannedStep, { slots }: StepResult): RowResults[] {
  let end = 0;
  const rows = step.sampled.map((sequence, row) => {
    const begin = end;
    const most = step.samples[row] as number;
    while (end - begin < most && end < slots.length && slots[end] === sequence.slot) end++;
    if (end === begin && !mayBeLeftOut(step, sequence))
      throw new Error(`Result ${end} is not of slot ${sequence.slot}.`);
    return { row, sequence, begin, end };
  });
  if (end !== slots.length) throw new Error(`The engine returned ${slots.length} results, ${end} of them asked for.`);
  return rows;
}

function mayBeLeftOut({ ahead }: PlannedStep, { aborted, state }: Sequence): boolean {
  return ahead && (aborted || state === 'done');
}

/** After a preemption or a restart a prompt is scored again from its beginning: what was delivered is dropped here. */
export function ownersOfScores(step: PlannedStep, result: StepResult): Float64Array {
  const ids = new Float64Array(result.promptSlots.length).fill(-1);
  if (ids.length === 0) return ids;
  const bySlot = new Map(step.fed.map((sequence) => [sequence.slot, sequence]));
  result.promptSlots.forEach((slot, index) => {
    const sequence = bySlot.get(slot);
    if (!sequence) throw new Error(`Prompt score ${index} is of slot ${slot}, which had no row.`);
    const position = result.promptPositions[index] as number;
    if (position >= sequence.promptLength) return void scoreForced(sequence, position, index, result);
    if (sequence.aborted || position !== sequence.nextScore) return;
    sequence.nextScore++;
    ids[index] = sequence.id;
  });
  return ids;
}

/** Appends the row's tokens to its sequence and returns how many. */
export function appendTokens({ sequence, begin, end }: RowResults, { tokens, finish }: StepResult): number {
  let count = 0;
  for (let index = begin; index < end; index++) {
    if (WITHOUT_TOKEN.has(finish[index] as number)) continue;
    sequence.append(tokens[index] as number);
    count++;
  }
  return count;
}

/** What was computed of the sequence must not be found by others. */
export function isSpoilt({ begin, end }: RowResults, { finish }: StepResult): boolean {
  return end > begin && finish[end - 1] === FINISH.notFinite;
}
