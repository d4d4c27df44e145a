import { describe, expect, it } from 'vitest';
import { StopScanner, StopStrings } from '../../../src/control/sessions/stop-strings.ts';

interface Result {
  text: string;
  stop: string | null;
}

function scan(stops: string[], pieces: string[], includeStop = false): Result & { sent: string[] } {
  const scanner = new StopScanner(new StopStrings(stops), includeStop);
  const sent: string[] = [];
  for (const piece of pieces) {
    const { text, stop } = scanner.feed(piece, false);
    sent.push(text);
    if (stop !== null) return { text: sent.join(''), stop, sent };
  }
  sent.push(scanner.flush());
  return { text: sent.join(''), stop: null, sent };
}

/** What a reader of the whole text would do: the match that ends first, of those the longest. */
function naive(stops: string[], text: string): Result {
  for (let end = 1; end <= text.length; end++) {
    const found = stops.filter((stop) => text.slice(0, end).endsWith(stop)).sort((a, b) => b.length - a.length)[0];
    if (found !== undefined) return { text: text.slice(0, end - found.length), stop: found };
  }
  return { text, stop: null };
}

describe('stop strings', () => {
  it('are found across pieces and never sent', () => {
    expect(scan(['STOP'], ['Hello ST', 'O', 'P and more'])).toMatchObject({ text: 'Hello ', stop: 'STOP' });
  });

  it('hold back only what may still become a stop string', () => {
    const { sent } = scan(['abcd'], ['xxab', 'c', 'x', 'yab']);
    expect(sent).toEqual(['xx', '', 'abcx', 'y', 'ab']);
  });

  it('hold nothing back when they are to be shown', () => {
    expect(scan(['abc'], ['xab', 'cd'], true)).toMatchObject({ text: 'xabc', stop: 'abc', sent: ['xab', 'c'] });
  });

  it('take the match that ends first, whatever the order of the list', () => {
    expect(scan(['abcd', 'c'], ['abcd'])).toMatchObject({ text: 'ab', stop: 'c' });
    expect(scan(['bc', 'abc'], ['xabc'])).toMatchObject({ text: 'x', stop: 'abc' });
    expect(scan(['aab'], ['aaab'])).toMatchObject({ text: 'a', stop: 'aab' });
  });

  it('do not count where they are inert, but may begin there', () => {
    const scanner = new StopScanner(new StopStrings(['ab']), false);
    expect(scanner.feed('xaba', true).stop).toBeNull();
    expect(scanner.feed('b!', false)).toEqual({ text: '', stop: 'ab' });
    // One that ended there may hold the beginning of another.
    const two = new StopScanner(new StopStrings(['ab', 'bc']), false);
    expect(two.feed('xab', true)).toEqual({ text: 'xa', stop: null });
    expect(two.feed('c', false)).toEqual({ text: '', stop: 'bc' });
  });

  it('never split a character', () => {
    expect(scan(['😀!'], ['a😀', '😁']).sent).toEqual(['a', '😀😁', '']);
  });

  it('agree with a reader of the whole text for every way of cutting it', () => {
    let state = 1;
    const random = (below: number): number => {
      state = (state * 48_271) % 2_147_483_647;
      return state % below;
    };
    const word = (most: number): string => Array.from({ length: 1 + random(most) }, () => 'ab'[random(2)]).join('');
    for (let round = 0; round < 2000; round++) {
      const stops = Array.from({ length: 1 + random(3) }, () => word(5));
      const text = word(14);
      const pieces: string[] = [];
      for (let at = 0; at < text.length;) {
        const size = 1 + random(4);
        pieces.push(text.slice(at, at + size));
        at += size;
      }
      const { text: got, stop } = scan(stops, pieces);
      expect({ got: { text: got, stop }, stops, pieces }).toEqual({ got: naive(stops, text), stops, pieces });
    }
  });

  it('take linear time for as many and as long ones as a request may have', () => {
    const stops = Array.from({ length: 64 }, (_, i) => 'a'.repeat(1020) + i);
    const pieces = Array.from({ length: 1000 }, () => 'a'.repeat(100));
    expect(scan(stops, pieces).stop).toBeNull();
  });

  it('take little memory while their requests wait', () => {
    // No two begin alike, which would be a tree of 65,536 nodes.
    const many = (seed: number) =>
      Array.from({ length: 64 }, (_, i) =>
        Array.from({ length: 1024 }, (__, k) =>
          String.fromCharCode(256 + ((seed + i * 7919 + k * (i + 31)) % 5003)),
        ).join(''),
      );
    const lists = Array.from({ length: 32 }, (_, seed) => many(seed));
    const before = process.memoryUsage();
    const kept = lists.map((stops) => new StopStrings(stops));
    const after = process.memoryUsage();
    const bytes = after.heapUsed - before.heapUsed + after.arrayBuffers - before.arrayBuffers;
    expect(kept).toHaveLength(32);
    expect(bytes / 32).toBeLessThan(1024 * 1024);
  });
});
