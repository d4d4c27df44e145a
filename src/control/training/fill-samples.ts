/**
 * Trajectories may name the completion that they come from instead of carrying its ids and log-probabilities. They are looked up
 * when the job is accepted, since the server remembers them only for a while, and stored with it.
 */
import { TrainingInputError } from './errors.ts';
import {
  historiesOf,
  historyPath,
  isChoice,
  type ChoiceElement,
  type HistoryElement,
  type LogprobEntry,
  type Trajectory,
  type TrajectoryGroup,
} from './trajectories.ts';

/** Sampled tokens that the server still remembers. */
export interface SampledTokens {
  promptIds: ArrayLike<number>;
  /** The end token included. */
  tokenIds: ArrayLike<number>;
  /** Raw log-probabilities, one per token. */
  logprobs: ArrayLike<number>;
}

/** What the ids of completions begin with; the request_id follows. */
export const COMPLETION_PREFIXES = ['chatcmpl-', 'cmpl-', 'resp_', 'msg_'];

/**
 * A completion's choices by its id, or by the request_id that it was made from. null: never known, forgotten, or another entity's; for a choice,
 * that some of its tokens were hidden.
 */
export type FindSample = (requestId: string) => readonly (SampledTokens | null)[] | null;

/** In place. `train`: throws TrainingInputError where a completion is not known; `log`: such a reply stays as it came. */
export function fillSamples(group: TrajectoryGroup, groupIndex: number, find: FindSample, use: 'train' | 'log'): void {
  group.trajectories.forEach((trajectory, i) => {
    const path = `trajectory_groups.${groupIndex}.trajectories.${i}`;
    nameLastReply(trajectory, path, find, use);
    historiesOf(trajectory).forEach(({ messages_and_choices: elements }, h) =>
      elements.forEach((element, e) => {
        if (isChoice(element)) fillChoice(element, `${historyPath(path, h)}.${e}`, find, use);
      }),
    );
  });
}

/**
 * metadata.request_id of a trajectory is that of its last reply, which may be a plain message. Metadata are the client's own, so an id that
 * is no completion's is left alone; so is, where replies carry their tokens, one that is not known, or that is the id of one of these.
 */
function nameLastReply(trajectory: Trajectory, path: string, find: FindSample, use: 'train' | 'log'): void {
  const requestId = trajectory.metadata?.['request_id'];
  const elements = trajectory.messages_and_choices;
  if (typeof requestId !== 'string' || !elements) return;
  const at = elements.findLastIndex(isReply);
  const reply = elements[at];
  if (reply && isChoice(reply) && (reply.logprobs ?? null) !== null) return;
  const choices = find(requestId) ?? [];
  const carried = historiesOf(trajectory).flatMap((history) => history.messages_and_choices.filter(carriesTokens));
  if (carried.length > 0 && (choices.length === 0 || carried.some((one) => isOneOf(one, choices)))) return;
  const ambiguous = reply !== undefined && !isChoice(reply) && choices.length > 1;
  if (reply && !ambiguous && choices[isChoice(reply) ? indexOf(reply) : 0]) {
    if (isChoice(reply)) reply.request_id ??= requestId;
    else elements[at] = { finish_reason: 'stop', index: 0, message: reply, request_id: requestId };
    return;
  }
  const meant = ambiguous || COMPLETION_PREFIXES.some((prefix) => requestId.startsWith(prefix));
  if (use === 'log' || !meant) return;
  const why = ambiguous ? AMBIGUOUS : reply ? NOT_REMEMBERED : 'names a reply, but the trajectory has none.';
  throw new TrainingInputError(`${path}.metadata.request_id`, why);
}

const AMBIGUOUS = 'names a completion of several choices: send the reply as a choice with its index.';
const NOT_REMEMBERED = 'is not remembered: send token_ids and logprobs instead.';

function indexOf({ index }: ChoiceElement): number {
  return index ?? 0;
}

function carriesTokens(element: HistoryElement): element is ChoiceElement {
  return isChoice(element) && entriesOf(element).length > 0;
}

function entriesOf({ logprobs }: ChoiceElement): LogprobEntry[] {
  return logprobs?.content ?? logprobs?.refusal ?? [];
}

function isOneOf(choice: ChoiceElement, samples: readonly (SampledTokens | null)[]): boolean {
  const entries = entriesOf(choice);
  const ids = choice.token_ids?.length === entries.length ? choice.token_ids : null;
  const is = (sampled: ArrayLike<number>) =>
    sampled.length === entries.length &&
    entries.every(({ token }, i) => (ids ? ids[i] === sampled[i] : token === `token_id:${sampled[i]}`));
  return samples.some((sample) => sample !== null && is(sample.tokenIds));
}

function isReply(element: HistoryElement): boolean {
  return isChoice(element) || element.role === 'assistant';
}

function fillChoice(choice: ChoiceElement, path: string, find: FindSample, use: 'train' | 'log'): void {
  const { request_id: requestId = null, logprobs = null } = choice;
  if (requestId === null || logprobs !== null) return;
  const sample = find(requestId)?.[indexOf(choice)];
  if (!sample) {
    if (use === 'log') return;
    throw new TrainingInputError(`${path}.request_id`, NOT_REMEMBERED);
  }
  choice.prompt_token_ids = Array.from(sample.promptIds);
  choice.token_ids = Array.from(sample.tokenIds);
  choice.logprobs = {
    content: Array.from(sample.tokenIds, (id, i) => ({
      token: `token_id:${id}`,
      logprob: sample.logprobs[i] as number,
    })),
  };
}
