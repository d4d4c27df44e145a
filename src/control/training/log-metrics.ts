/** What POST /log computes from trajectory groups. */
import { addTo, emptySum, GroupOutcomes, meanOf, policyLag, type Sum } from './group-outcomes.ts';
import type { TrajectoryGroup } from './trajectories.ts';

/** Few numbers, however many groups there were: they go from the thread that reads bodies to the one that serves. */
export interface LogMeasures {
  /** By name, without the split. */
  metrics: Map<string, number>;
  /** The initial policy versions that were given. */
  versions: Sum;
}

export class LogMeter {
  readonly #outcomes = new GroupOutcomes();
  readonly #trajectories = new Map<string, Sum>();
  readonly #groups = new Map<string, Sum>();

  add(group: TrajectoryGroup): void {
    this.#outcomes.add(group);
    for (const { metrics } of group.trajectories) addMetrics(this.#trajectories, metrics);
    if (group.trajectories.length > 0) addMetrics(this.#groups, group.metrics);
  }

  measures(): LogMeasures {
    const { trajectories, reward, exceptionRate, rewardStdDev, versions } = this.#outcomes;
    const metrics = new Map<string, number>();
    for (const [name, sum] of this.#trajectories) metrics.set(name, meanOf(sum));
    for (const [name, sum] of this.#groups) metrics.set(`group_${name}`, meanOf(sum));
    // A metric of a client's must not take these names.
    if (trajectories > 0) metrics.set('reward', reward);
    metrics.set('exception_rate', exceptionRate);
    metrics.set('reward_std_dev', rewardStdDev);
    return { metrics, versions };
  }
}

/** Booleans count as 0 and 1. */
function addMetrics(sums: Map<string, Sum>, metrics: Record<string, number | boolean> | null | undefined): void {
  for (const [name, value] of Object.entries(metrics ?? {})) {
    const sum = sums.get(name) ?? emptySum();
    addTo(sum, Number(value));
    sums.set(name, sum);
  }
}

/** `step`: of the checkpoint that the log belongs to. Keys are `<split>/<metric>`; values are finite. */
export function logMetrics(split: string, step: number, { metrics, versions }: LogMeasures): Record<string, number> {
  const lag = policyLag(step, versions);
  const all = lag === null ? metrics : new Map([...metrics, ['policy_lag', lag]]);
  const finite = [...all].filter(([, value]) => Number.isFinite(value));
  return Object.fromEntries(finite.map(([name, value]) => [`${split}/${name}`, value]));
}
