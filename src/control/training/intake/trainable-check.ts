/** What of a group that trajectory-check.ts has passed cannot be trained, by its look alone: before any of it is rendered. */
import { findMessageFault, findSizeFault } from '../chat-parts.ts';
import { sampledText, unscoredText } from '../choice-tokens.ts';
import { TrainingInputError } from '../errors.ts';
import {
  historiesOf,
  historyPath,
  isChoice,
  type History,
  type HistoryElement,
  type TrajectoryGroup,
} from '../trajectories.ts';

/**
 * `index`: of the group in the body. Throws TrainingInputError for the first fault. Returns the first thing that is one only where replies
 * without log-probabilities are trained as well: that setting may come after the groups.
 */
export function checkTrainable(group: TrajectoryGroup, index: number): TrainingInputError | null {
  const faults = group.trajectories.flatMap((trajectory, t) =>
    historiesOf(trajectory).flatMap((history, h) => {
      const path = historyPath(`trajectory_groups.${index}.trajectories.${t}`, h);
      return checkHistory(history, path) ?? [];
    }),
  );
  return faults[0] ?? null;
}

function checkHistory(
  { messages_and_choices: elements, tools = null }: History,
  path: string,
): TrainingInputError | null {
  const replies = elements.map((element, i) => replyOf(element, `${path}.${i}`));
  const messages = elements.map((element) => (isChoice(element) ? element.message : element));
  const size = findSizeFault([messages, tools]);
  if (size !== null) throw new TrainingInputError(path, size);
  // With the real prompt of every trained reply nothing is rendered.
  if (replies.some((reply) => reply === 'sampled')) checkRendered(elements, replies, path);
  return findUnscoredFault(elements, replies, path);
}

/** Of a history whose replies without log-probabilities are trained too: one of them, and all is rendered. */
function findUnscoredFault(
  elements: readonly HistoryElement[],
  replies: readonly Reply[],
  path: string,
): TrainingInputError | null {
  try {
    const unscored = elements.map(
      (element, i) => replies[i] === null && unscoredText(element, `${path}.${i}`) !== null,
    );
    const trained = replies.map((reply, i) => (unscored[i] ? 'unscored' : reply));
    if (unscored.includes(true)) checkRendered(elements, trained, path);
    return null;
  } catch (error) {
    if (error instanceof TrainingInputError) return error;
    throw error;
  }
}

/** What stands before the last trained reply is given to the chat template; of a trained reply its ids are. */
function checkRendered(elements: readonly HistoryElement[], replies: readonly Reply[], path: string): void {
  const last = replies.findLastIndex((reply) => reply !== null);
  for (const [i, element] of elements.slice(0, last).entries()) {
    const [message, where] = isChoice(element) ? [element.message, ['message']] : [element, []];
    const wrong = replies[i] === null ? findMessageFault(message) : null;
    if (wrong) throw new TrainingInputError([path, i, ...where, ...wrong.place].join('.'), wrong.problem);
  }
}

/** null: context alone. */
type Reply = 'sampled' | 'sampled with its prompt' | 'unscored' | null;

function replyOf(element: HistoryElement, path: string): Reply {
  if (!isChoice(element)) return null;
  const { prompt_token_ids: prompt = null } = element;
  if (prompt?.length === 0) throw new TrainingInputError(`${path}.prompt_token_ids`, 'must not be empty.');
  if (sampledText(element, path) === null) return null;
  return prompt === null ? 'sampled' : 'sampled with its prompt';
}
