/** The judgements of bench:check and bench:soak; no benchmark runs here. */
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, test } from 'vitest';
import { compareCases, sameMachine } from '../../../benchmarks/lib/compare.mjs';
import { soakVerdict } from '../../../benchmarks/server/soak-verdict.mjs';

interface Baseline {
  machine: { cpu?: string; gpu?: string };
  cases: { name: string; unit: string; tandem: { median: number } }[];
}

function rate(median: number, changes: object = {}) {
  return {
    name: 'engine/bf16/decode/8',
    tandem: { median, min: median * 0.95, max: median * 1.05 },
    unit: 'tok/s',
    ...changes,
  };
}

function verdict(result: object, baseline: object): string | undefined {
  return compareCases({ cases: [result] }, { cases: [baseline] }, 0.1)[0]?.verdict;
}

describe('a case against its baseline', () => {
  test('rates fall, times rise', () => {
    expect(verdict(rate(100), rate(100))).toBe('same');
    expect(verdict(rate(91), rate(100))).toBe('same');
    expect(verdict(rate(80), rate(100))).toBe('worse');
    expect(verdict(rate(120), rate(100))).toBe('better');
    expect(verdict(rate(120, { unit: 'ms' }), rate(100, { unit: 'ms' }))).toBe('worse');
    expect(verdict(rate(80, { unit: 'ms' }), rate(100, { unit: 'ms' }))).toBe('better');
    const cost = { unit: '% of a step' };
    expect(verdict(rate(5, cost), rate(1, cost))).toBe('same');
    expect(verdict(rate(30, cost), rate(1, cost))).toBe('worse');
    expect(verdict(rate(-1, cost), rate(30, cost))).toBe('better');
  });
  test('a slower machine is no worse engine: shares and ratios hold', () => {
    const before = rate(100, { ratio: 2, limit_share: 0.8 });
    expect(verdict(rate(70, { ratio: 2, limit_share: 0.8 }), before)).toBe('unclear');
    expect(verdict(rate(70, { ratio: 1.5, limit_share: 0.6 }), before)).toBe('worse');
  });
  test('a spread that reaches the baseline decides nothing', () => {
    expect(verdict(rate(80, { tandem: { median: 80, min: 60, max: 99 } }), rate(100))).toBe('unclear');
  });
  test('cases and machines that are not the same are not compared', () => {
    expect(verdict(rate(80), rate(100, { name: 'another' }))).toBeUndefined();
    const machine = { cpu: 'A', cores: 2, flags: ['avx2'], load_average: [1] };
    expect(sameMachine(machine, { ...machine, load_average: [2] })).toBe(true);
    expect(sameMachine(machine, { ...machine, flags: [] })).toBe(false);
    expect(sameMachine(machine, { ...machine, forced: 'avx2 haswell' })).toBe(false);
    expect(sameMachine(machine, { ...machine, shape: 'qwen3-moe' })).toBe(false);
    expect(sameMachine({ ...machine, gpu: 'NVIDIA H200' }, { gpu: 'NVIDIA H200' })).toBe(true);
    expect(sameMachine(machine, { ...machine, gpu: 'NVIDIA H200' })).toBe(false);
  });
});

describe('the committed baselines', () => {
  const folder = path.resolve(import.meta.dirname, '../../../benchmarks/baselines');
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.json'));

  test.each(files)('%s can be compared with', (file) => {
    const { machine, cases } = JSON.parse(readFileSync(path.join(folder, file), 'utf8')) as Baseline;
    expect(machine).toMatchObject(
      machine.gpu === undefined ? { cpu: expect.any(String) } : { gpu: expect.any(String) },
    );
    expect(cases.length).toBeGreaterThan(0);
    for (const one of cases) {
      expect(one).toMatchObject({ name: expect.any(String), unit: expect.any(String) });
      expect(one.tandem.median).toBeTypeOf('number');
    }
    const names = cases.map(({ name }) => name);
    const compared = compareCases({ cases }, { cases }, 0.1) as { name: string }[];
    expect(compared.map(({ name }) => name)).toEqual(names);
  });
});

describe('a soak', () => {
  const samples = (memory: (i: number) => number, speed: (i: number) => number) =>
    Array.from({ length: 100 }, (_, i) => ({ resident_bytes: memory(i), output_tok_s: speed(i) }));

  test('is flat and steady, whatever happens in the warm-up', () => {
    const one = soakVerdict(
      samples(
        (i) => (i < 20 ? 500 + i : 1000),
        (i) => (i < 20 ? 1 : 50 + (i % 3)),
      ),
    );
    expect(one).toMatchObject({ flat: true, steady: true });
  });
  test('is neither when memory creeps or speed fades', () => {
    expect(
      soakVerdict(
        samples(
          (i) => 1000 + i / 4,
          () => 50,
        ),
      ),
    ).toMatchObject({ flat: false, steady: true });
    expect(
      soakVerdict(
        samples(
          () => 1000,
          (i) => 50 - i / 20,
        ),
      ),
    ).toMatchObject({ flat: true, steady: false });
  });
  test('needs samples', () => {
    expect(() =>
      soakVerdict(
        samples(
          () => 1,
          () => 1,
        ).slice(0, 4),
      ),
    ).toThrow('five samples');
  });
});
