import { describe, expect, it } from 'vitest';
import {
  MAX_MEMBERS,
  packRows,
  rowLengthFor,
  sharedPrefixLength,
  type PackedRow,
  type TrainSequence,
} from '../../../src/control/training/pack.ts';
import { seededRandom, shuffle } from '../../../src/control/training/random.ts';

function sequence(group: number, tokens: number[], ...trainable: number[]): TrainSequence {
  return { group, tokens: Int32Array.from(tokens), trainable: Int32Array.from(trainable) };
}

/** Four replies to the prompt 7 8 9, as the reference client packs them. */
const FOUR = [
  sequence(0, [7, 8, 9, 100, 101], 3, 4),
  sequence(0, [7, 8, 9, 110, 111, 112], 3, 4, 5),
  sequence(0, [7, 8, 9, 120], 3),
  sequence(0, [7, 8, 9, 130, 131, 132, 133], 3, 4, 5, 6),
];

/** Each member's tokens and targets, read back through segments and parents. */
function unpack({ row, at, member, members }: PackedRow): { index: number; tokens: number[]; trained: number[][] }[] {
  const segments = Array.from({ length: row.segments.length / 4 }, (_, i) => row.segments.subarray(4 * i, 4 * i + 4));
  return members.map((index, m) => {
    const own = at.filter((_, i) => member[i] === m);
    const [start = 0, count = 0, parent = -1, position = 0] =
      segments.find(([from = 0, n = 0]) => (own[0] ?? -1) >= from && (own[0] ?? -1) < from + n) ?? [];
    const [from = 0, length = 0] = (parent >= 0 && segments[parent]) || [];
    expect(position).toBe(length);
    return {
      index,
      tokens: [...row.tokens.subarray(from, from + length), ...row.tokens.subarray(start, start + count)],
      trained: [...own].map((t) => [t - start + position + 1, row.targets[t] ?? -1]),
    };
  });
}

describe('packing', () => {
  it('stores a common beginning once, as the reference client does', () => {
    const [packed, ...more] = packRows(FOUR, 20);
    expect(more).toEqual([]);
    expect([...(packed?.row.tokens ?? [])]).toEqual([
      7, 8, 9, 100, 101, 9, 110, 111, 112, 9, 120, 9, 130, 131, 132, 133,
    ]);
    expect([...(packed?.row.segments ?? [])]).toEqual([0, 2, -1, 0, 2, 3, 0, 2, 5, 4, 0, 2, 9, 2, 0, 2, 11, 5, 0, 2]);
    const none = -1;
    expect([...(packed?.row.targets ?? [])]).toEqual([
      ...[none, none, 100, 101, none, 110, 111, 112, none, 120, none, 130, 131, 132, 133, none],
    ]);
    expect([...(packed?.member ?? [])]).toEqual([0, 0, 1, 1, 1, 2, 3, 3, 3, 3]);
  });

  it('shares up to the first trained token at most', () => {
    expect(sharedPrefixLength(FOUR)).toBe(2);
    expect(sharedPrefixLength([sequence(0, [1, 2, 3, 4], 3), sequence(0, [1, 2, 3, 4], 3)])).toBe(2);
    expect(sharedPrefixLength([sequence(0, [1, 2, 3, 4], 1), sequence(0, [1, 2, 3, 4], 3)])).toBe(0);
    expect(sharedPrefixLength([sequence(0, [1, 2], 1), sequence(0, [5, 2], 1)])).toBe(0);
    expect(sharedPrefixLength([])).toBe(0);
  });

  it('puts each sequence into the first row with room', () => {
    const rows = packRows(
      [
        sequence(0, [1, 2, 3, 4, 5, 6], 5),
        sequence(1, [1, 2, 3, 4, 5], 4),
        sequence(2, [9, 9], 1),
        sequence(3, [8, 8], 1),
      ],
      8,
    );
    expect(rows.map(({ members }) => members)).toEqual([
      [0, 2],
      [1, 3],
    ]);
  });

  it('keeps every token and target of random sequences', () => {
    const random = seededRandom('pack');
    const int = (low: number, high: number) => low + Math.floor(random() * (high - low + 1));
    const sequences = Array.from({ length: 60 }, () => {
      const length = int(2, 24);
      const tokens = Array.from({ length }, (_, i) => (i < 6 ? i : int(0, 3)));
      const first = int(1, length - 1);
      return sequence(int(0, 5), tokens, ...Array.from({ length: length - first }, (_, i) => first + i));
    });
    const rows = packRows(sequences, 40);
    const seen = rows.flatMap(unpack);
    expect(rows.every(({ row }) => row.tokens.length <= 40)).toBe(true);
    expect(seen.map(({ index }) => index).sort((a, b) => a - b)).toEqual([...sequences.keys()]);
    for (const { index, tokens, trained } of seen) {
      const source = sequences[index] as TrainSequence;
      expect(tokens).toEqual([...source.tokens]);
      expect(trained).toEqual([...source.trainable].map((t) => [t, source.tokens[t]]));
    }
  });

  it('keeps rows within the memory that they may take, and leaves out nothing', () => {
    const room = { maxTokens: 200, bytes: 3000, tokenBytes: 10, pageBytes: 70 };
    const sequences = Array.from({ length: 90 }, (_, i) => {
      const tokens = Array.from({ length: 10 + ((i * 7) % 40) }, (_, at) => (at < 8 + (i % 9) * 3 ? at : i));
      return sequence(i % 9, tokens, tokens.length - 2, tokens.length - 1);
    });
    const rows = packRows(sequences, 2048, room);
    expect(rows.flatMap(unpack)).toHaveLength(90);
    const bytes = rows.map(({ row: { tokens, segments } }) => {
      let pages = 0;
      for (let i = 0; i < segments.length; i += 4) {
        const [, count = 0, , position = 0] = segments.subarray(i, i + 4);
        pages += Math.ceil((position + count) / 16) - Math.floor(position / 16);
      }
      return tokens.length * room.tokenBytes + pages * room.pageBytes;
    });
    expect(Math.max(...bytes)).toBeLessThanOrEqual(room.bytes);
    // Filled: two of them are more than one may take.
    expect(bytes.slice(0, -1).every((each, i) => each + (bytes[i + 1] ?? 0) > room.bytes)).toBe(true);
    expect(packRows(sequences, 2048, { ...room, bytes: 1e9 }).every(({ row }) => row.tokens.length <= 200)).toBe(true);
  });

  it('gives what is too large for any row one of its own', () => {
    const room = { maxTokens: 100, bytes: 1000, tokenBytes: 10, pageBytes: 0 };
    const long = sequence(0, Array(150).fill(1) as number[], 1);
    const rows = packRows([sequence(1, [1, 2], 1), long, sequence(2, [1, 3], 1)], 2048, room);
    expect(rows.map(({ members }) => members)).toEqual([[0, 2], [1]]);
  });

  it('puts no more sequences into a row than serving may wait for', () => {
    const many = Array.from({ length: 2 * MAX_MEMBERS + 1 }, () => sequence(0, [7, 8, 9, 10], 3));
    const rows = packRows(many, 32_768);
    expect(rows.map(({ members }) => members.length)).toEqual([MAX_MEMBERS, MAX_MEMBERS, 1]);
    expect(rows.flatMap((row) => unpack(row).map(({ tokens }) => tokens))).toEqual(
      many.map(({ tokens }) => [...tokens]),
    );
  });

  it('takes a moment where no row is ever full', () => {
    const sequences = Array.from({ length: 100_000 }, (_, i) =>
      i === 0 ? sequence(i, [1, 2], 1) : sequence(i, [1, 2, 3, 4, 5, 6], 1),
    );
    const started = performance.now();
    const rows = packRows(sequences, 9);
    // Without a bound it takes minutes.
    expect(performance.now() - started).toBeLessThan(20_000);
    expect(rows).toHaveLength(99_999);
    expect(rows[0]?.members).toEqual([0, 1]);
  });

  it('chooses the row length by the longest sequence', () => {
    expect([1, 2048, 2049, 99_999].map((longest) => rowLengthFor(longest, null))).toEqual([2048, 2048, 4096, 32_768]);
    expect(rowLengthFor(99_999, 512)).toBe(512);
  });
});

describe('shuffling', () => {
  it('depends on the seed alone', () => {
    const order = (seed: string) => shuffle([...Array(50).keys()], seededRandom(seed));
    expect(order('a')).toEqual(order('a'));
    expect(order('a')).not.toEqual(order('b'));
    expect([...order('a')].sort((x, y) => x - y)).toEqual([...Array(50).keys()]);
  });
});
