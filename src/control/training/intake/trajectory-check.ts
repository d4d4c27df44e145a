/** Trajectory groups as clients send them, checked before anything is stored. What is not named here is kept as it came. */
import { isPlainObject } from '../../../schemas/plain-object.ts';
import { shorten } from '../../../schemas/shorten.ts';
import { invalid } from '../../../schemas/validation-error.ts';
import { ROLES, type TrajectoryGroup } from '../trajectories.ts';

type Loc = (string | number)[];
type Json = Record<string, unknown>;

/** Rewards are squared and summed: this keeps every sum finite. */
const MAX_REWARD = 1e38;
/** A log-probability may be above 0 by rounding only. */
const MAX_LOGPROB = 1e-6;
const MIN_LOGPROB = -1e6;
const MAX_LOG_LINES = 100_000;
const TOKEN_ID = /^token_id:(\d{1,10})$/;
/** Of one trajectory, and different ones of all that is logged at once: each becomes a metric of the checkpoint. */
export const MAX_METRICS = 1_000;
/** They are kept by name, in the database and in every list of checkpoints. */
const MAX_METRIC_NAME = 256;
const DATE_TIME = /^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:?\d{2})?$/;

/** Throws ValidationError at the first fault. */
export function checkGroup(value: unknown, loc: Loc, vocabSize: number): asserts value is TrajectoryGroup {
  const group = object(value, loc);
  const trajectories = array(required(group, 'trajectories', loc), [...loc, 'trajectories']);
  trajectories.forEach((item, index) => checkTrajectory(item, [...loc, 'trajectories', index], vocabSize));
  for (const [index, item] of list(group, 'exceptions', loc).entries()) object(item, [...loc, 'exceptions', index]);
  dictionary(group, 'metadata', loc);
  checkMetrics(group, loc);
  checkLogs(group, loc);
}

function checkTrajectory(value: unknown, loc: Loc, vocabSize: number): void {
  const trajectory = object(value, loc);
  checkHistory(trajectory, loc, vocabSize);
  for (const [index, item] of list(trajectory, 'additional_histories', loc).entries()) {
    const at = [...loc, 'additional_histories', index];
    const history = object(item, at);
    required(history, 'messages_and_choices', at);
    checkHistory(history, at, vocabSize);
  }
  checkReward(trajectory, loc);
  checkVersions(trajectory, loc);
  checkMetrics(trajectory, loc);
  dictionary(trajectory, 'metadata', loc);
  checkLogs(trajectory, loc);
  checkStartTime(trajectory, loc);
}

function checkHistory(history: Json, loc: Loc, vocabSize: number): void {
  for (const [index, item] of list(history, 'messages_and_choices', loc).entries()) {
    const at = [...loc, 'messages_and_choices', index];
    const element = object(item, at);
    if ('finish_reason' in element) checkChoice(element, at, vocabSize);
    else checkMessage(element, at);
  }
  for (const [index, item] of list(history, 'tools', loc).entries()) checkTool(item, [...loc, 'tools', index]);
}

function checkMessage(message: Json, loc: Loc): void {
  const role = string(required(message, 'role', loc), [...loc, 'role']);
  if (!ROLES.includes(role)) {
    const known = ROLES.map((name) => `'${name}'`).join(', ');
    throw invalid([...loc, 'role'], `Input should be one of ${known}`, 'literal_error');
  }
  checkContent(message, loc);
  for (const [index, call] of list(message, 'tool_calls', loc).entries()) object(call, [...loc, 'tool_calls', index]);
}

function checkContent(message: Json, loc: Loc): void {
  const content = message['content'] ?? null;
  if (content === null || typeof content === 'string') return;
  if (!Array.isArray(content)) throw invalid([...loc, 'content'], 'Input should be a valid string', 'string_type');
  // A part may be a text by itself, as in a chat.
  for (const [index, part] of content.entries()) if (typeof part !== 'string') object(part, [...loc, 'content', index]);
}

function checkTool(value: unknown, loc: Loc): void {
  const tool = object(value, loc);
  if ((tool['type'] ?? 'function') !== 'function') {
    throw invalid([...loc, 'type'], "Input should be 'function'", 'literal_error');
  }
  const at = [...loc, 'function'];
  const called = object(required(tool, 'function', loc), at);
  string(required(called, 'name', at), [...at, 'name']);
  const { description = null, parameters = null, strict = null } = called;
  if (description !== null) string(description, [...at, 'description']);
  if (parameters !== null) object(parameters, [...at, 'parameters']);
  if (strict !== null && typeof strict !== 'boolean') {
    throw invalid([...at, 'strict'], 'Input should be a valid boolean', 'bool_type');
  }
}

function checkChoice(choice: Json, loc: Loc, vocabSize: number): void {
  const { finish_reason: reason, index = null, request_id: requestId = null } = choice;
  if (reason !== null) string(reason, [...loc, 'finish_reason']);
  if (index !== null) wholeNumber(index, [...loc, 'index']);
  if (requestId !== null) string(requestId, [...loc, 'request_id']);
  const at = [...loc, 'message'];
  const message = object(required(choice, 'message', loc), at);
  const role = message['role'] ?? 'assistant';
  if (role !== 'assistant') throw invalid([...at, 'role'], "Input should be 'assistant'", 'literal_error');
  checkContent(message, at);
  for (const [call, item] of list(message, 'tool_calls', at).entries()) object(item, [...at, 'tool_calls', call]);
  const ids = tokenIds(choice, 'token_ids', loc, vocabSize);
  tokenIds(choice, 'prompt_token_ids', loc, vocabSize);
  const logprobs = choice['logprobs'] ?? null;
  if (logprobs === null) return;
  const lists = object(logprobs, [...loc, 'logprobs']);
  const idsOf = (lists['content'] ?? null) === null ? 'refusal' : 'content';
  for (const name of ['content', 'refusal']) {
    const entries = list(lists, name, [...loc, 'logprobs']);
    checkLogprobs(entries, [...loc, 'logprobs', name], name === idsOf ? ids : null, vocabSize);
  }
}

function checkLogprobs(entries: unknown[], loc: Loc, ids: readonly number[] | null, vocabSize: number): void {
  // Libraries that put a stream together (openai's for JavaScript) keep the token_ids of its last piece alone.
  const before = ids === null ? 0 : entries.length - ids.length;
  if (ids !== null && entries.length > 0 && (before < 0 || (before > 0 && !entries.every(isNamed)))) {
    throw invalid(loc, `There are ${entries.length} log-probabilities for ${ids.length} token_ids.`);
  }
  for (let i = 0; i < entries.length; i++) {
    const entry = object(entries[i], [...loc, i]);
    const token = string(required(entry, 'token', [...loc, i]), [...loc, i, 'token']);
    const logprob = finite(required(entry, 'logprob', [...loc, i]), [...loc, i, 'logprob']);
    const at = [...loc, i, 'logprob'];
    if (logprob > MAX_LOGPROB) throw invalid(at, 'A log-probability is at most 0', 'less_than_equal');
    if (logprob < MIN_LOGPROB) throw invalid(at, `A log-probability is at least ${MIN_LOGPROB}`, 'greater_than_equal');
    const id = TOKEN_ID.exec(token)?.[1];
    if (id === undefined) continue;
    if (Number(id) >= vocabSize) throw outsideVocabulary([...loc, i, 'token'], Number(id), vocabSize);
    const carried = ids?.[i - before] ?? Number(id);
    if (carried !== Number(id)) {
      throw invalid([...loc, i, 'token'], `The token is ${id}, but token_ids says ${carried}.`);
    }
  }
}

function isNamed(entry: unknown): boolean {
  const token = (entry as Json | null)?.['token'];
  return typeof token === 'string' && TOKEN_ID.test(token);
}

function tokenIds(choice: Json, key: string, loc: Loc, vocabSize: number): number[] | null {
  if ((choice[key] ?? null) === null) return null;
  const at = [...loc, key];
  const ids = array(choice[key], at);
  for (let i = 0; i < ids.length; i++) {
    const id = wholeNumber(ids[i], [...at, i]);
    if (id >= vocabSize) throw outsideVocabulary([...at, i], id, vocabSize);
  }
  return ids as number[];
}

function outsideVocabulary(loc: Loc, id: number, vocabSize: number): Error {
  return invalid(loc, `The token id ${id} is outside of the vocabulary of ${vocabSize}.`, 'less_than');
}

/** null is not the default here: NaN is written as null in a client's JSON, and would be trained as a reward of 0. */
function checkReward(trajectory: Json, loc: Loc): void {
  const reward = trajectory['reward'];
  // As clients write whether an answer was right.
  if (reward === undefined || typeof reward === 'boolean') return;
  if (Math.abs(finite(reward, [...loc, 'reward'])) > MAX_REWARD) {
    throw invalid([...loc, 'reward'], `A reward lies between -${MAX_REWARD} and ${MAX_REWARD}`, 'less_than_equal');
  }
}

function checkVersions(trajectory: Json, loc: Loc): void {
  const versions = ['initial_policy_version', 'final_policy_version'].map((name) => {
    const version = trajectory[name] ?? null;
    return version === null ? null : wholeNumber(version, [...loc, name]);
  });
  const [initial = null, final = null] = versions;
  if (initial !== null && final !== null && final < initial) {
    const message = `final_policy_version ${final} is before initial_policy_version ${initial}.`;
    throw invalid([...loc, 'final_policy_version'], message);
  }
}

function checkMetrics(holder: Json, loc: Loc): void {
  const metrics = dictionary(holder, 'metrics', loc);
  const entries = Object.entries(metrics);
  if (entries.length > MAX_METRICS) throw invalid([...loc, 'metrics'], `At most ${MAX_METRICS} metrics`, 'too_long');
  for (const [name, value] of entries) {
    const at = [...loc, 'metrics', shorten(name, 64)];
    if (name.length > MAX_METRIC_NAME)
      throw invalid(at, `A metric's name has at most ${MAX_METRIC_NAME} characters`, 'string_too_long');
    if (typeof value !== 'boolean') finite(value, at);
  }
}

function checkLogs(holder: Json, loc: Loc): void {
  const logs = list(holder, 'logs', loc);
  if (logs.length > MAX_LOG_LINES) throw invalid([...loc, 'logs'], `At most ${MAX_LOG_LINES} lines`, 'too_long');
  logs.forEach((line, index) => string(line, [...loc, 'logs', index]));
}

function checkStartTime(trajectory: Json, loc: Loc): void {
  const time = trajectory['start_time'] ?? null;
  if (time === null) return;
  const text = string(time, [...loc, 'start_time']);
  if (!DATE_TIME.test(text) || Number.isNaN(Date.parse(text))) {
    throw invalid([...loc, 'start_time'], 'Input should be a valid datetime', 'datetime_parsing');
  }
}

function required(holder: Json, key: string, loc: Loc): unknown {
  if (holder[key] === undefined) throw invalid([...loc, key], 'Field required', 'missing');
  return holder[key];
}

function object(value: unknown, loc: Loc): Json {
  if (isPlainObject(value)) return value;
  throw invalid(loc, 'Input should be a valid dictionary', 'dict_type');
}

function array(value: unknown, loc: Loc): unknown[] {
  if (Array.isArray(value)) return value;
  throw invalid(loc, 'Input should be a valid list', 'list_type');
}

function string(value: unknown, loc: Loc): string {
  if (typeof value === 'string') return value;
  throw invalid(loc, 'Input should be a valid string', 'string_type');
}

function finite(value: unknown, loc: Loc): number {
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  throw invalid(loc, 'Input should be a finite number', typeof value === 'number' ? 'finite_number' : 'float_type');
}

function wholeNumber(value: unknown, loc: Loc): number {
  if (typeof value === 'number' && Number.isSafeInteger(value)) {
    if (value >= 0) return value;
    throw invalid(loc, 'Input should be greater than or equal to 0', 'greater_than_equal');
  }
  throw invalid(loc, 'Input should be a valid integer', 'int_type');
}

/** null, like absent, is empty. */
function list(holder: Json, key: string, loc: Loc): unknown[] {
  const value = holder[key] ?? null;
  return value === null ? [] : array(value, [...loc, key]);
}

function dictionary(holder: Json, key: string, loc: Loc): Json {
  const value = holder[key] ?? null;
  return value === null ? {} : object(value, [...loc, key]);
}
