/** One body of trajectory groups, from the file it was received into to a compressed file of groups. Runs on an intake thread. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, type FileHandle } from 'node:fs/promises';
import { parseJsonNumbers, writeJson } from '../../json-numbers.ts';
import { invalid, ValidationError, type ValidationDetail } from '../../../schemas/validation-error.ts';
import { groupAdvantages } from '../advantages.ts';
import { TrainingInputError } from '../errors.ts';
import { fillSamples, type FindSample, type SampledTokens } from '../fill-samples.ts';
import { renderedChat } from '../history-tokens.ts';
import { LogMeter } from '../log-metrics.ts';
import { writeGroup } from '../tool-numbers.ts';
import { historiesOf, historyPath, isChoice, rewardsOf, type History, type TrajectoryGroup } from '../trajectories.ts';
import type { ChatCheck } from './chat-check.ts';
import { compressed } from './content.ts';
import { JsonSplitter } from './json-splitter.ts';
import { MAX_JSON_DEPTH, type IntakeSettings, type IntakeTask, type TrajectoriesRead } from './protocol.ts';
import { checkTrainable } from './trainable-check.ts';
import { checkGroup, MAX_METRICS } from './trajectory-check.ts';

export const GROUPS_KEY = 'trajectory_groups';

/** What is remembered of completions, by their ids; one entry per choice. */
export type FindSamples = (requestIds: string[]) => Promise<Map<string, (SampledTokens | null)[]>>;

export async function readTrajectories(
  { use, source, target }: Extract<IntakeTask, { kind: 'trajectories' }>,
  settings: IntakeSettings,
  find: FindSamples,
  chats: ChatCheck,
): Promise<TrajectoriesRead> {
  const output = await open(target, 'w', 0o600);
  try {
    const reader = new Reader(use, settings, output, { find, chats });
    // No groups are a compressed nothing, not an empty file.
    await output.writeFile(await compressed(''));
    const hash = createHash('sha256');
    for await (const chunk of createReadStream(source, { highWaterMark: 2 ** 20 })) {
      hash.update(chunk as Buffer);
      await reader.splitter.push(chunk as Buffer);
    }
    reader.splitter.finish();
    await output.sync();
    const { fields, trajectories, unscoredFault } = reader;
    return {
      kind: 'trajectories',
      fields,
      groups: reader.splitter.sawArray ? reader.groups : null,
      trajectories,
      measures: reader.meter.measures(),
      unscoredFault,
      digest: hash.digest('hex'),
    };
  } finally {
    await output.close();
  }
}

/** Asked of the thread that serves. */
interface Others {
  find: FindSamples;
  chats: ChatCheck;
}

class Reader {
  readonly splitter: JsonSplitter;
  readonly fields: Record<string, unknown> = {};
  readonly meter = new LogMeter();
  groups = 0;
  trajectories = 0;
  unscoredFault: ValidationDetail | null = null;
  readonly #metricNames = new Set<string>();
  readonly #use: 'train' | 'log';
  readonly #settings: IntakeSettings;
  readonly #output: FileHandle;
  readonly #others: Others;

  constructor(use: 'train' | 'log', settings: IntakeSettings, output: FileHandle, others: Others) {
    this.#use = use;
    this.#settings = settings;
    this.#output = output;
    this.#others = others;
    const { maxGroupBytes, maxFieldBytes } = settings;
    const limits = { maxFieldBytes, maxElementBytes: maxGroupBytes, maxDepth: MAX_JSON_DEPTH };
    this.splitter = new JsonSplitter(GROUPS_KEY, limits, {
      // defineProperty: `__proto__` is a field like any other.
      field: (key, value) =>
        void Object.defineProperty(this.fields, key, { value, enumerable: true, configurable: true, writable: true }),
      element: (index, value, text) => this.#group(index, value, text),
    });
  }

  async #group(index: number, value: unknown, text: string): Promise<void> {
    const { vocabSize, maxTrajectories } = this.#settings;
    const trained = this.#use === 'train';
    checkGroup(value, ['body', GROUPS_KEY, index], trained ? vocabSize : Infinity);
    this.trajectories += value.trajectories.length;
    if (this.trajectories > maxTrajectories || index >= maxTrajectories) {
      throw invalid(['body', GROUPS_KEY], `At most ${maxTrajectories} trajectories`, 'too_long');
    }
    const find = await this.#remembered(value);
    if (trained) {
      if (find !== null) asValidation(() => fillSamples(value, index, find, 'train'));
      await this.#checkTrained(value, index);
    } else this.#measure(value, index);
    const written = trained ? writeGroup(value) : logged(text, index, find);
    this.groups++;
    await this.#output.writeFile(await compressed(`${written}\n`));
  }

  async #checkTrained(group: TrajectoryGroup, index: number): Promise<void> {
    const unscored = asValidation(() => checkTrainable(group, index));
    if (unscored !== null) this.unscoredFault ??= toDetail(unscored);
    // What brings no advantage is not rendered.
    const advantages = groupAdvantages(rewardsOf(group), true);
    for (const [i, trajectory] of group.trajectories.entries()) {
      if (advantages[i] === 0) continue;
      const path = `${GROUPS_KEY}.${index}.trajectories.${i}`;
      for (const [h, history] of historiesOf(trajectory).entries()) {
        await this.#checkRendering(history, historyPath(path, h));
      }
    }
  }

  async #checkRendering(history: History, path: string): Promise<void> {
    const chat = renderedChat(history, path);
    const refusal = chat === null ? null : await this.#others.chats.refusal(chat);
    if (refusal !== null) throw new ValidationError([toDetail(new TrainingInputError(path, refusal))]);
  }

  #measure(group: TrajectoryGroup, index: number): void {
    for (const { metrics } of [group, ...group.trajectories]) {
      for (const name of Object.keys(metrics ?? {})) this.#metricNames.add(name);
    }
    // Names that differ from trajectory to trajectory would add up without end.
    if (this.#metricNames.size > MAX_METRICS) {
      throw invalid(['body', GROUPS_KEY, index], `At most ${MAX_METRICS} different metrics`, 'too_long');
    }
    this.meter.add(group);
  }

  /** What is remembered of the completions that the group names; null: it names none. */
  async #remembered(group: TrajectoryGroup): Promise<FindSample | null> {
    const requestIds = namedCompletions(group);
    if (requestIds.length === 0) return null;
    const found = await this.#others.find(requestIds);
    return (requestId) => found.get(requestId) ?? null;
  }
}

/** As it was sent, on one line: what a client reads back has its own numbers, such as ids beyond 2^53 in metadata. */
function logged(text: string, index: number, find: FindSample | null): string {
  // Within a string a line break is no JSON.
  if (find === null) return text.replaceAll('\n', ' ');
  try {
    const group = parseJsonNumbers(text) as TrajectoryGroup;
    fillSamples(group, index, find, 'log');
    return writeJson(group);
  } catch (error) {
    throw error instanceof SyntaxError ? invalid(['body', GROUPS_KEY, index], error.message, 'json_invalid') : error;
  }
}

function namedCompletions(group: TrajectoryGroup): string[] {
  const ids = new Set<string>();
  for (const trajectory of group.trajectories) {
    const named = trajectory.metadata?.['request_id'];
    if (typeof named === 'string') ids.add(named);
    for (const { messages_and_choices: elements } of historiesOf(trajectory)) {
      for (const element of elements) {
        if (isChoice(element) && typeof element.request_id === 'string') ids.add(element.request_id);
      }
    }
  }
  return [...ids];
}

/** `trajectory_groups.0.trajectories.1.reward: why` as a place in the body. */
function toDetail(error: TrainingInputError): ValidationDetail {
  const loc = error.field.split('.').map((part) => (/^\d+$/.test(part) ? Number(part) : part));
  const prefix = `${error.field}: `;
  const msg = error.message.startsWith(prefix) ? error.message.slice(prefix.length) : error.message;
  return { loc: ['body', ...loc], msg, type: 'value_error' };
}

export function asValidation<T>(work: () => T): T {
  try {
    return work();
  } catch (error) {
    throw error instanceof TrainingInputError ? new ValidationError([toDetail(error)]) : error;
  }
}
