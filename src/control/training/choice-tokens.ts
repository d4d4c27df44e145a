/** What of a reply is trained: the sampled ids and log-probabilities that a Choice carries, or a text without these. */
import { findMessageFault, textOf } from './chat-parts.ts';
import { TrainingInputError } from './errors.ts';
import { isChoice, messageOf, type ChoiceElement, type HistoryElement, type LogprobEntry } from './trajectories.ts';

export interface SampledText {
  ids: Int32Array;
  /** NaN: not known. */
  logprobs: Float64Array;
}

const TOKEN_ID = /^token_id:(\d{1,10})$/;

/** null: the choice carries no log-probabilities, so it is context only. `path` names it in errors. */
export function sampledText({ logprobs: lists, token_ids: carried }: ChoiceElement, path: string): SampledText | null {
  const name = (lists?.content ?? null) === null ? 'refusal' : 'content';
  const entries = lists?.[name] ?? [];
  if (entries.length === 0) return null;
  const whole = carried?.length === entries.length ? carried : null;
  const ids = Int32Array.from(whole ?? entries.map((entry, i) => writtenId(entry, `${path}.logprobs.${name}.${i}`)));
  // Rounding may lift a certain token's a little above 0.
  const logprobs = entries.map(({ logprob }) => Math.min(logprob, 0));
  return { ids, logprobs: Float64Array.from(logprobs) };
}

function writtenId({ token }: LogprobEntry, path: string): number {
  const id = TOKEN_ID.exec(token)?.[1];
  if (id !== undefined) return Number(id);
  throw new TrainingInputError(
    `${path}.token`,
    'must have the form "token_id:<id>" where the choice has no token_ids: a token\'s text does not say its id.',
  );
}

/** What of an element without log-probabilities is trained by its text; null: nothing. `path` names it in errors. */
export function unscoredText(element: HistoryElement, path: string): string | null {
  const message = messageOf(element);
  if (message.role !== 'assistant') return null;
  const place = isChoice(element) ? `${path}.message` : path;
  const { content, tool_calls: calls, function_call: call = null } = message;
  const calling = Array.isArray(calls) && calls.length > 0 ? 'tool_calls' : call === null ? null : 'function_call';
  if (calling !== null) {
    throw new TrainingInputError(`${place}.${calling}`, 'cannot be trained without log-probabilities.');
  }
  const wrong = findMessageFault(message);
  if (wrong) throw new TrainingInputError([place, ...wrong.place].join('.'), wrong.problem);
  return textOf(content) || null;
}
