/** What is refused before a job is accepted. Rendering comes later: a template's complaint fails the job. */
import { findMessageFault, findSizeFault } from './chat-parts.ts';
import { sampledText, tokenIds, unscoredText } from './choice-tokens.ts';
import { TrainingInputError } from './errors.ts';
import {
  historiesOf,
  isChoice,
  type History,
  type HistoryElement,
  type Trajectory,
  type TrajectoryGroup,
} from './trajectories.ts';

/** Their squares stay finite, however many there are. */
const MAX_REWARD = 1e100;

/**
 * `index`: of the group in the body. Throws TrainingInputError for the first fault. Returns the first thing that is one only where replies
 * without log-probabilities are trained as well: that setting may come after the groups.
 */
export function checkTrajectoryGroup(
  group: TrajectoryGroup,
  index: number,
  vocabSize: number,
): TrainingInputError | null {
  const faults = group.trajectories.flatMap((trajectory, i) =>
    checkTrajectory(trajectory, `trajectory_groups.${index}.trajectories.${i}`, vocabSize),
  );
  return faults[0] ?? null;
}

function checkTrajectory(trajectory: Trajectory, path: string, vocabSize: number): TrainingInputError[] {
  const { reward = null, initial_policy_version: initial = null, final_policy_version: final = null } = trajectory;
  if (reward !== null && !(Math.abs(reward) <= MAX_REWARD)) {
    throw new TrainingInputError(`${path}.reward`, `must be a number between -${MAX_REWARD} and ${MAX_REWARD}.`);
  }
  if (initial !== null && final !== null && final < initial) {
    throw new TrainingInputError(
      `${path}.final_policy_version`,
      `is ${final}, below initial_policy_version ${initial}.`,
    );
  }
  return historiesOf(trajectory).flatMap((history, i) => checkHistory(history, historyPath(path, i), vocabSize) ?? []);
}

/** Of the main history (0) or an additional one. */
export function historyPath(trajectoryPath: string, index: number): string {
  const history = index === 0 ? trajectoryPath : `${trajectoryPath}.additional_histories.${index - 1}`;
  return `${history}.messages_and_choices`;
}

function checkHistory(
  { messages_and_choices: elements, tools = null }: History,
  path: string,
  vocabSize: number,
): TrainingInputError | null {
  const replies = elements.map((element, i) => checkElement(element, `${path}.${i}`, vocabSize));
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

function checkElement(element: HistoryElement, path: string, vocabSize: number): Reply {
  if (isChoice(element)) {
    checkContent(element.message.content, `${path}.message.content`);
    const sampled = sampledText(element, path, vocabSize);
    const prompt = tokenIds(element.prompt_token_ids, `${path}.prompt_token_ids`, vocabSize);
    if (prompt?.length === 0) throw new TrainingInputError(`${path}.prompt_token_ids`, 'must not be empty.');
    if (sampled === null) return null;
    return prompt === null ? 'sampled' : 'sampled with its prompt';
  }
  if (typeof element.role !== 'string' || element.role === '') {
    throw new TrainingInputError(`${path}.role`, 'must be a string: an element is a message or a choice.');
  }
  checkContent(element.content, `${path}.content`);
  return null;
}

function checkContent(content: unknown, path: string): void {
  if (content === undefined || content === null || typeof content === 'string' || Array.isArray(content)) return;
  throw new TrainingInputError(path, 'must be a string, a list of parts, or null.');
}
