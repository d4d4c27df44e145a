/** What POST /log computes from trajectory groups. Keys are `<split>/<metric>`; values are finite. */
import { mean, populationStandardDeviation } from './advantages.ts';
import type { Trajectory, TrajectoryGroup } from './trajectories.ts';

export function logMetrics(split: string, groups: readonly TrajectoryGroup[]): Record<string, number> {
  const trajectories = groups.flatMap((group) => group.trajectories);
  const metrics = new Map<string, number>();
  for (const [name, values] of valuesByName(trajectories)) metrics.set(name, mean(values));
  for (const [name, values] of valuesByName(groups.filter((group) => group.trajectories.length > 0))) {
    metrics.set(`group_${name}`, mean(values));
  }
  if (trajectories.length > 0) metrics.set('reward', mean(trajectories.map(rewardOf)));
  metrics.set('exception_rate', exceptionRate(groups, trajectories.length));
  metrics.set('reward_std_dev', rewardDeviation(groups));
  const finite = [...metrics].filter(([, value]) => Number.isFinite(value));
  return Object.fromEntries(finite.map(([name, value]) => [`${split}/${name}`, value]));
}

/** Mean over the groups that have more than one trajectory; 0 where none has. */
function rewardDeviation(groups: readonly TrajectoryGroup[]): number {
  const several = groups.filter(({ trajectories }) => trajectories.length > 1);
  return mean(several.map(({ trajectories }) => populationStandardDeviation(trajectories.map(rewardOf))));
}

function exceptionRate(groups: readonly TrajectoryGroup[], trajectories: number): number {
  const exceptions = groups.reduce((sum, group) => sum + (group.exceptions?.length ?? 0), 0);
  return exceptions === 0 ? 0 : exceptions / (trajectories + exceptions);
}

function rewardOf(trajectory: Trajectory): number {
  return trajectory.reward ?? 0;
}

/** Booleans count as 0 and 1; what is not a finite number is left out. */
function valuesByName(items: readonly { metrics?: Record<string, number | boolean> | null }[]): Map<string, number[]> {
  const values = new Map<string, number[]>();
  for (const { metrics } of items) {
    for (const [name, value] of Object.entries(metrics ?? {})) {
      const number = Number(value);
      if (!Number.isFinite(number) || (typeof value !== 'number' && typeof value !== 'boolean')) continue;
      const list = values.get(name);
      if (list) list.push(number);
      else values.set(name, [number]);
    }
  }
  return values;
}
