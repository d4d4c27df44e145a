import { describe, expect, it } from 'vitest';
import { logMetrics } from '../../../src/control/training/log-metrics.ts';

describe('logged metrics', () => {
  it('are means over trajectories and groups', () => {
    const groups = [
      {
        trajectories: [
          { reward: 1, metrics: { won: true, turns: 4 } },
          { reward: 0, metrics: { won: false } },
        ],
        exceptions: [{}],
        metrics: { hard: true },
      },
      { trajectories: [{ reward: 0.5, metrics: { odd: NaN } }], metrics: { hard: 0 } },
      { trajectories: [], exceptions: [{}, {}], metrics: { hard: 9 } },
    ];
    expect(logMetrics('val', groups)).toEqual({
      'val/reward': 0.5,
      'val/won': 0.5,
      'val/turns': 4,
      'val/group_hard': 0.5,
      'val/exception_rate': 0.5,
      'val/reward_std_dev': 0.5,
    });
  });

  it('have no reward without trajectories', () => {
    expect(logMetrics('train', [{ trajectories: [] }])).toEqual({
      'train/exception_rate': 0,
      'train/reward_std_dev': 0,
    });
  });

  it('survive hostile names', () => {
    const metrics = JSON.parse('{"__proto__": 1, "constructor": 2}') as Record<string, number>;
    const result = logMetrics('t', [{ trajectories: [{ metrics }] }]);
    expect(result['t/__proto__']).toBe(1);
    expect(result['t/constructor']).toBe(2);
  });
});
