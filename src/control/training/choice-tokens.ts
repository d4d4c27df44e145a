/** What of a reply is trained: the sampled ids and log-probabilities that a Choice carries, checked, or a text without these. */
import { findMessageFault, textOf } from './chat-parts.ts';
import { TrainingInputError } from './errors.ts';
import { isChoice, messageOf, type ChoiceElement, type HistoryElement } from './trajectories.ts';

export interface SampledText {
  ids: Int32Array;
  /** NaN: not known. */
  logprobs: Float64Array;
}

const TOKEN_ID = /^token_id:(\d{1,10})$/;
/** Rounding may lift a certain token's log-probability a little above 0. */
const ROUNDING = 1e-4;

/** null: the choice carries no log-probabilities, so it is context only. `path` names it in errors. */
export function sampledText(choice: ChoiceElement, path: string, vocabSize: number): SampledText | null {
  const entries = logprobEntries(choice.logprobs, path);
  if (entries === null || entries.list.length === 0) return null;
  const written = entries.list.map((entry, i) => tokenIdOf(entry, `${entries.path}.${i}`));
  const logprobs = entries.list.map((entry, i) => logprobOf(entry, `${entries.path}.${i}`));
  const carried = tokenIds(choice.token_ids, `${path}.token_ids`, vocabSize);
  if (carried) checkAgreement(carried, written, `${path}.token_ids`);
  const ids = carried ?? Int32Array.from(written, (id, i) => checkedId(id, `${entries.path}.${i}.token`, vocabSize));
  return { ids, logprobs: Float64Array.from(logprobs) };
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

/** null: absent. */
export function tokenIds(value: unknown, path: string, vocabSize: number): Int32Array | null {
  if (value === undefined || value === null) return null;
  if (!Array.isArray(value)) throw new TrainingInputError(path, 'must be a list of token ids.');
  return Int32Array.from(value as unknown[], (id, i) => {
    if (typeof id !== 'number' || !Number.isInteger(id) || id < 0 || id >= vocabSize) {
      throw outOfVocabulary(`${path}.${i}`, id, vocabSize);
    }
    return id;
  });
}

function outOfVocabulary(path: string, id: unknown, vocabSize: number): TrainingInputError {
  const shown = typeof id === 'number' ? String(id) : `a ${typeof id}`;
  return new TrainingInputError(path, `must be a token id below the vocabulary's size ${vocabSize}, got ${shown}.`);
}

interface Entries {
  list: unknown[];
  path: string;
}

function logprobEntries(logprobs: unknown, path: string): Entries | null {
  if (logprobs === undefined || logprobs === null) return null;
  if (typeof logprobs !== 'object') throw new TrainingInputError(`${path}.logprobs`, 'must be an object or null.');
  const { content = null, refusal = null } = logprobs as { content?: unknown; refusal?: unknown };
  const [name, list] = content === null ? ['refusal', refusal] : ['content', content];
  if (list === null) return null;
  if (!Array.isArray(list)) throw new TrainingInputError(`${path}.logprobs.${name}`, 'must be a list or null.');
  return { list: list as unknown[], path: `${path}.logprobs.${name}` };
}

/** null: the token is written as text. */
function tokenIdOf(entry: unknown, path: string): number | null {
  const token = (entry as { token?: unknown } | null)?.token;
  if (typeof token !== 'string') throw new TrainingInputError(`${path}.token`, 'must be a string.');
  const match = TOKEN_ID.exec(token);
  return match ? Number(match[1]) : null;
}

function checkedId(id: number | null, path: string, vocabSize: number): number {
  if (id === null) {
    throw new TrainingInputError(
      path,
      'must have the form "token_id:<id>" where the choice has no token_ids: a token\'s text does not say its id.',
    );
  }
  if (id >= vocabSize) throw outOfVocabulary(path, id, vocabSize);
  return id;
}

function logprobOf(entry: unknown, path: string): number {
  const logprob = (entry as { logprob?: unknown } | null)?.logprob;
  if (typeof logprob !== 'number' || !Number.isFinite(logprob)) {
    throw new TrainingInputError(`${path}.logprob`, 'must be a finite number.');
  }
  if (logprob > ROUNDING) throw new TrainingInputError(`${path}.logprob`, `must not be above 0, got ${logprob}.`);
  return Math.min(logprob, 0);
}

function checkAgreement(ids: Int32Array, written: (number | null)[], path: string): void {
  if (ids.length !== written.length) {
    throw new TrainingInputError(path, `has ${ids.length} ids for ${written.length} log-probabilities.`);
  }
  const odd = written.findIndex((id, i) => id !== null && id !== ids[i]);
  if (odd !== -1) {
    throw new TrainingInputError(`${path}.${odd}`, `is ${ids[odd]}, but its log-probability is of ${written[odd]}.`);
  }
}
