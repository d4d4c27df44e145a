/** How trajectory groups went, whether they are trained on or only logged. Counted group by group, so that none has to be kept. */
import { populationStandardDeviation } from './advantages.ts';
import { rewardsOf, type TrajectoryGroup } from './trajectories.ts';

/** A mean in the making. */
export interface Sum {
  sum: number;
  count: number;
}

export class GroupOutcomes {
  readonly #rewards = emptySum();
  readonly #deviations = emptySum();
  readonly #versions = emptySum();
  #exceptions = 0;

  add(group: TrajectoryGroup): void {
    const rewards = rewardsOf(group);
    for (const reward of rewards) addTo(this.#rewards, reward);
    if (rewards.length > 1) addTo(this.#deviations, populationStandardDeviation(rewards));
    this.#exceptions += group.exceptions?.length ?? 0;
    for (const { initial_policy_version: version = null } of group.trajectories) {
      if (version !== null) addTo(this.#versions, version);
    }
  }

  get trajectories(): number {
    return this.#rewards.count;
  }

  /** Of all trajectories; 0 where there are none. */
  get reward(): number {
    return meanOf(this.#rewards);
  }

  /** Mean over the groups that have more than one trajectory; 0 where none has. */
  get rewardStdDev(): number {
    return meanOf(this.#deviations);
  }

  /** Of all attempts: those that became a trajectory, and those that became an exception. */
  get exceptionRate(): number {
    return this.#exceptions === 0 ? 0 : this.#exceptions / (this.#rewards.count + this.#exceptions);
  }

  /** The initial policy versions that were given. */
  get versions(): Sum {
    return this.#versions;
  }
}

/** How many steps the trajectories' policies were behind, on average; null where none says its version. */
export function policyLag(step: number, { sum, count }: Sum): number | null {
  return count === 0 ? null : (step * count - sum) / count;
}

export function emptySum(): Sum {
  return { sum: 0, count: 0 };
}

export function addTo(sum: Sum, value: number): void {
  sum.sum += value;
  sum.count++;
}

export function meanOf({ sum, count }: Sum): number {
  return count === 0 ? 0 : sum / count;
}
