/** Trajectory groups -> the rows of an RL job, with what each token weighs. */
import { SessionError } from '../sessions/session.ts';
import type { RowRoom } from '../engine/training.ts';
import type { ChatEncoder } from '../sessions/open-chat.ts';
import { groupAdvantages, normalizeWeights, trajectoryWeight } from './advantages.ts';
import { TrainingFailedError, TrainingInputError } from './errors.ts';
import { GroupOutcomes, type Sum } from './group-outcomes.ts';
import { historyTokens, type HistoryTokens } from './history-tokens.ts';
import { ENDLESS_ROOM, packRows, rowLengthFor, type PackedRow, type TrainSequence } from './pack.ts';
import { seededRandom, shuffle } from './random.ts';
import type { RlConfig } from './rl-config.ts';
import { historiesOf, historyPath, rewardsOf, type Trajectory, type TrajectoryGroup } from './trajectories.ts';

/** One trained history; all its tokens share advantage and weight. */
interface RlSequence extends TrainSequence {
  logprobs: Float64Array;
  trainableTokens: number;
  advantage: number;
  weight: number;
}

/** A packed row; N = entries of `packed.at`. */
export interface RlRow {
  packed: PackedRow;
  /** N entries each. Old log-probabilities: NaN where not known. */
  advantages: Float64Array;
  weights: Float64Array;
  oldLogprobs: Float64Array;
}

/** What the groups say about themselves, for events. */
export interface RlStats {
  reward: number;
  rewardStdDev: number;
  exceptionRate: number;
  groupsSubmitted: number;
  groupsTrainable: number;
  trajectories: number;
  /** Left out: longer than a row or the model's context. */
  dropped: number;
  /** Initial policy versions that were given, for the lag. */
  versions: Sum;
}

export interface RlBatch {
  rows: RlRow[];
  stats: RlStats;
}

/** Chats that are rendered at the same time: few, so that requests are not kept waiting. */
const CONCURRENT = 4;

const NO_LOGPROBS =
  'There are no assistant logprobs to train on. Did you forget to include at least one Choice with logprobs in ' +
  'Trajectory.messages_and_choices?';

/** The same rows in the same order for the same input, seed and room. */
export async function rlBatch(
  groups: AsyncIterable<TrajectoryGroup>,
  config: RlConfig,
  chat: ChatEncoder,
  seed: string,
  room: RowRoom = ENDLESS_ROOM,
): Promise<RlBatch> {
  const collector = new Collector(config, chat);
  let index = 0;
  for await (const group of groups) await collector.add(group, index++);
  const sequences = collector.finish();
  normalizeWeights(sequences, config.advantageBalance);
  const longest = sequences.reduce((length, { tokens }) => Math.max(length, tokens.length), 0);
  const packed = packRows(sequences, rowLengthFor(longest, config.packedSequenceLength), room);
  const rows = packed.map((row) => weighted(row, sequences));
  return { rows: shuffle(rows, seededRandom(`rows ${seed}`)), stats: collector.stats() };
}

function weighted(packed: PackedRow, sequences: readonly RlSequence[]): RlRow {
  const members = packed.members.map((index) => sequences[index]);
  const perToken = (value: (sequence: RlSequence) => number): Float64Array =>
    Float64Array.from(packed.member, (member) => {
      const sequence = members[member];
      return sequence ? value(sequence) : 0;
    });
  return {
    packed,
    advantages: perToken(({ advantage }) => advantage),
    weights: perToken(({ weight }) => weight),
    oldLogprobs: Float64Array.from(members.flatMap((sequence) => [...(sequence?.logprobs ?? [])])),
  };
}

class Collector {
  readonly #config: RlConfig;
  readonly #chat: ChatEncoder;
  /** Longest sequence that fits a row and the context. */
  readonly #limit: number;
  readonly #sequences: RlSequence[] = [];
  readonly #outcomes = new GroupOutcomes();
  #groups = 0;
  #dropped = 0;
  #unequal = 0;

  constructor(config: RlConfig, chat: ChatEncoder) {
    this.#config = config;
    this.#chat = chat;
    this.#limit = Math.min(chat.maxModelLen, rowLengthFor(Infinity, config.packedSequenceLength));
  }

  async add(group: TrajectoryGroup, index: number): Promise<void> {
    const { trajectories } = group;
    this.#groups++;
    this.#outcomes.add(group);
    const advantages = groupAdvantages(rewardsOf(group), this.#config.scaleRewards);
    const trained = trajectories.map((_, i) => i).filter((i) => advantages[i] !== 0);
    this.#unequal += trained.length;
    for (let from = 0; from < trained.length; from += CONCURRENT) {
      const some = trained.slice(from, from + CONCURRENT);
      const paths = some.map((i) => `trajectory_groups.${index}.trajectories.${i}`);
      const results = await Promise.all(some.map((i, k) => this.#tokenize(trajectories[i] ?? {}, paths[k] ?? '')));
      results.forEach((histories, k) => this.#keep(histories, index, advantages[some[k] ?? 0] ?? 0));
    }
  }

  async #tokenize(trajectory: Trajectory, path: string): Promise<HistoryTokens[]> {
    const options = { chat: this.#chat, withoutLogprobs: this.#config.allowTrainingWithoutLogprobs };
    const results: HistoryTokens[] = [];
    for (const [i, history] of historiesOf(trajectory).entries()) {
      const where = historyPath(path, i);
      try {
        results.push(...(await historyTokens(history, where, options)));
      } catch (error) {
        if (!(error instanceof SessionError)) throw error;
        if (error.code !== 'context_length') throw refused(error, where);
        this.#dropped++;
      }
    }
    return results;
  }

  /** Every history shares the trajectory's advantage and weight. */
  #keep(histories: HistoryTokens[], group: number, advantage: number): void {
    const total = histories.reduce((sum, { trainable }) => sum + trainable.length, 0);
    for (const history of histories) {
      if (history.tokens.length > this.#limit) {
        this.#dropped++;
        continue;
      }
      const trainableTokens = history.trainable.length;
      this.#sequences.push({ ...history, group, trainableTokens, advantage, weight: trajectoryWeight(total) });
    }
  }

  finish(): RlSequence[] {
    if (this.#sequences.length === 0 && this.#dropped === 0 && this.#unequal > 0) {
      throw new TrainingFailedError(NO_LOGPROBS);
    }
    return this.#sequences;
  }

  stats(): RlStats {
    const { reward, rewardStdDev, exceptionRate, trajectories, versions } = this.#outcomes;
    return {
      reward,
      rewardStdDev,
      exceptionRate,
      groupsSubmitted: this.#groups,
      groupsTrainable: new Set(this.#sequences.map(({ group }) => group)).size,
      trajectories,
      dropped: this.#dropped,
      versions,
    };
  }
}

/** A chat that the template does not take fails the job; an overloaded or closing server does not. */
function refused(error: SessionError, path: string): Error {
  return error.code === 'bad_request' ? new TrainingInputError(path, error.message) : error;
}
