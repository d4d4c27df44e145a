import { describe, expect, it } from 'vitest';
import { logMetrics, LogMeter } from '../../../src/control/training/log-metrics.ts';
import type { TrajectoryGroup } from '../../../src/control/training/trajectories.ts';

function measure(split: string, groups: TrajectoryGroup[], step = 0): Record<string, number> {
  const meter = new LogMeter();
  for (const group of groups) meter.add(group);
  return logMetrics(split, step, structuredClone(meter.measures()));
}

describe('logged metrics', () => {
  it('are means over trajectories and groups', () => {
    const groups = [
      {
        trajectories: [
          { reward: 1, metrics: { won: true, turns: 4, endless: 1e308 } },
          { reward: 0, metrics: { won: false, endless: 1e308 } },
        ],
        exceptions: [{}],
        metrics: { hard: true },
      },
      { trajectories: [{ reward: 0.5, metrics: { reward: 7 } }], metrics: { hard: 0 } },
      { trajectories: [], exceptions: [{}, {}], metrics: { hard: 9 } },
    ];
    expect(measure('val', groups)).toEqual({
      'val/reward': 0.5,
      'val/won': 0.5,
      'val/turns': 4,
      'val/group_hard': 0.5,
      'val/exception_rate': 0.5,
      'val/reward_std_dev': 0.5,
    });
  });

  it('count a reward that is true as 1', () => {
    const metrics = measure('val', [{ trajectories: [{ reward: true }, { reward: false }, { reward: true }, {}] }]);
    expect(metrics).toMatchObject({ 'val/reward': 0.5, 'val/reward_std_dev': 0.5 });
  });

  it('have no reward without trajectories', () => {
    expect(measure('train', [{ trajectories: [] }])).toEqual({
      'train/exception_rate': 0,
      'train/reward_std_dev': 0,
    });
  });

  it('say how far behind the policies were, where they say which they were', () => {
    const trajectories = [0, 0, 1, null].map((initial_policy_version) => ({ initial_policy_version }));
    expect(measure('val', [{ trajectories }], 3)['val/policy_lag']).toBe(8 / 3);
    expect(measure('val', [{ trajectories: [{}] }], 3)).not.toHaveProperty('val/policy_lag');
  });

  it('survive hostile names', () => {
    const metrics = JSON.parse('{"__proto__": 1, "constructor": 2}') as Record<string, number>;
    const result = measure('t', [{ trajectories: [{ metrics }] }]);
    expect(result['t/__proto__']).toBe(1);
    expect(result['t/constructor']).toBe(2);
  });
});
