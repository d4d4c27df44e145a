/** The rolling scan against the rule read literally: the last L * count tokens are copies of the last L. */
import { describe, expect, it } from 'vitest';
import {
  MAX_PATTERN_SIZE,
  RepetitionScan,
  repetitionRule,
  type RepetitionRule,
} from '../../../src/control/sessions/repetition.ts';

function literally(tokens: number[], { minSize, maxSize, minCount }: RepetitionRule): boolean {
  for (let size = minSize; size <= maxSize && size * minCount <= tokens.length; size++) {
    const end = tokens.slice(-size * minCount);
    if (end.every((token, at) => token === end[at % size])) return true;
  }
  return false;
}

describe('RepetitionScan', () => {
  it('agrees with the literal rule after every token of random outputs', () => {
    let state = 7;
    const random = (below: number) => (state = (state * 1103515245 + 12345) % 2 ** 31) % below;
    let found = 0;
    for (let round = 0; round < 400; round++) {
      const minSize = 1 + random(4);
      const rule = { minSize, maxSize: minSize + random(6), minCount: 2 + random(3) };
      const scan = new RepetitionScan(rule);
      const tokens: number[] = [];
      for (let i = 0; i < 60; i++) {
        // Mostly a repetition of what came some places before, so that copies do occur.
        const back = 1 + random(9);
        const token = random(5) > 0 ? (tokens.at(-back) ?? 0) : random(3);
        tokens.push(token);
        const expected = literally(tokens, rule);
        if (expected) found++;
        expect(scan.push(token), JSON.stringify({ rule, tokens })).toBe(expected);
      }
    }
    expect(found).toBeGreaterThan(1000);
  });

  it('reads the bounds', () => {
    expect(repetitionRule(0, 0, 0)).toBeNull();
    expect(repetitionRule(3, 0, 2)).toEqual({ minSize: 1, maxSize: 3, minCount: 2 });
    expect(() => repetitionRule(-1, 0, 2)).toThrow('max_pattern_size must be >= 0');
    expect(() => repetitionRule(3, -1, 2)).toThrow('min_pattern_size must be >= 0');
    expect(() => repetitionRule(3, 4, 2)).toThrow('min_pattern_size must be <= max_pattern_size');
    expect(() => repetitionRule(3, 1, 1)).toThrow('min_count must be >= 2');
    expect(() => repetitionRule(MAX_PATTERN_SIZE + 1, 1, 2)).toThrow('max_pattern_size must be at most');
  });
});
