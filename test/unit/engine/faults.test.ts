import { describe, expect, it } from 'vitest';
import { parseFaults, withFaults } from '../../../src/control/engine/faults.ts';
import type { NativeEngine } from '../../../src/control/engine/native.ts';
import { StatsTotal } from '../../../src/control/engine/stats-total.ts';

const engine: NativeEngine = {
  step: () => Promise.reject(new Error('real')),
  readPages: () => Promise.reject(new Error('real')),
  writePages: () => Promise.reject(new Error('real')),
  close: () => {},
};
const PLAN = {
  opens: [],
  closes: new Int32Array(0),
  pages: new Int32Array(0),
  rows: new Int32Array(0),
  tokens: new Int32Array(0),
};

describe('faults', () => {
  it('without any the engine is untouched', () => {
    expect(withFaults(engine, [])).toBe(engine);
  });

  it('happen at their step', async () => {
    const faulty = withFaults(engine, ['step-error-at=2']);
    await expect(faulty.step(PLAN)).rejects.toThrow('real');
    await expect(faulty.step(PLAN)).rejects.toThrow('Injected: step 2');
    await expect(faulty.step(PLAN)).rejects.toThrow('real');
  });

  it.each(['', 'step-error-at', 'step-error-at=', 'step-error-at=x', 'step-error=1', '=1'])('refuses %o', (text) => {
    expect(() => parseFaults([text])).toThrow('is not one of');
  });
});

describe('StatsTotal', () => {
  const life = {
    running: 3,
    waiting: 2,
    pagesTotal: 9,
    pagesUsed: 4,
    preemptions: 1,
    steps: 10,
    promptTokens: 5,
    generatedTokens: 6,
    stepMicros: 7,
    stepTokens: { counts: [4, 6], sum: 12 },
    prefixCacheQueries: 8,
    prefixCacheHits: 3,
  };

  it('keeps counters over a restart and drops gauges', () => {
    const stats = new StatsTotal();
    stats.update(life);
    expect(stats.read(0)).toEqual(life);
    stats.endLife();
    expect(stats.read(8)).toEqual({ ...life, running: 0, waiting: 8, pagesUsed: 0 });
    stats.update(life);
    stats.endLife();
    stats.endLife();
    expect(stats.read(0)).toMatchObject({
      steps: 20,
      promptTokens: 10,
      generatedTokens: 12,
      stepMicros: 14,
      stepTokens: { counts: [8, 12], sum: 24 },
      preemptions: 2,
      prefixCacheQueries: 16,
      prefixCacheHits: 6,
    });
  });
});
