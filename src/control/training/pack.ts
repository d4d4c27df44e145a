/**
 * Token sequences -> packed rows. Sequences of one group that begin alike store their common beginning once per row: a segment
 * that the others have as their parent. One row is one forward and backward pass.
 */
import type { TrainRow } from '../engine/training.ts';

/** What one history of a trajectory trains. */
export interface TrainSequence {
  /** Index of its group; sequences of a group may share their beginning. */
  group: number;
  tokens: Int32Array;
  /** Indices of the trained tokens, ascending, at least one, each >= 1: a first token has nothing to be predicted from. */
  trainable: Int32Array;
}

export interface PackedRow {
  row: TrainRow;
  /** One entry per trained token, in row order: the row index that predicts it. */
  at: Int32Array;
  /** The same length: which entry of `members` it belongs to. */
  member: Int32Array;
  /** The sequences in the row, as indices into what was packed. */
  members: number[];
}

/** Row lengths are multiples of this up to a limit, where none is asked for. */
const ROW_UNIT = 2048;
const MAX_ROW = 32_768;

export function rowLengthFor(longest: number, wanted: number | null): number {
  return wanted ?? Math.min(Math.max(Math.ceil(longest / ROW_UNIT), 1) * ROW_UNIT, MAX_ROW);
}

/**
 * Length of the beginning that a group's sequences store once. The last common token is not part of it: each sequence repeats it
 * to predict its own first token.
 */
export function sharedPrefixLength(sequences: readonly TrainSequence[]): number {
  const [first] = sequences;
  if (!first) return 0;
  let length = first.tokens.length;
  for (const { tokens, trainable } of sequences) {
    length = Math.min(length, trainable[0] ?? 0);
    for (let i = 0; i < length; i++) if (tokens[i] !== first.tokens[i]) length = i;
  }
  return Math.max(length - 1, 0);
}

interface OpenRow {
  used: number;
  members: number[];
  groups: Set<number>;
}

/** Rows that are looked at for one more sequence. A hundred thousand sequences must not keep the server from answering. */
const MAX_OPEN_ROWS = 256;

/** First fit in the order given. No sequence may be longer than `rowLength`. */
export function packRows(sequences: readonly TrainSequence[], rowLength: number): PackedRow[] {
  const prefixes = prefixLengths(sequences);
  let shortest = Infinity;
  for (const { tokens, group } of sequences) shortest = Math.min(shortest, tokens.length - (prefixes.get(group) ?? 0));
  const rows: OpenRow[] = [];
  let open: OpenRow[] = [];
  sequences.forEach(({ tokens, group }, index) => {
    const shared = prefixes.get(group) ?? 0;
    let row = firstFit(open, rowLength - tokens.length, group, shared);
    if (!row) {
      row = { used: 0, members: [], groups: new Set() };
      rows.push(row);
      open.push(row);
      if (open.length > MAX_OPEN_ROWS) open.shift();
    }
    row.used += tokens.length - (row.groups.has(group) ? shared : 0);
    row.members.push(index);
    row.groups.add(group);
    // A row without room for the shortest is not looked at again.
    if (row.used + shortest > rowLength) open = open.filter((candidate) => candidate !== row);
  });
  return rows.map(({ members }) => layOut(members, sequences, prefixes));
}

/** `mostUsed`: what a row may hold where it has nothing of the group; `shared` more where it has. */
function firstFit(open: readonly OpenRow[], mostUsed: number, group: number, shared: number): OpenRow | undefined {
  for (const row of open) {
    if (row.used <= mostUsed || (row.used <= mostUsed + shared && row.groups.has(group))) return row;
  }
  return undefined;
}

function prefixLengths(sequences: readonly TrainSequence[]): Map<number, number> {
  const groups = new Map<number, TrainSequence[]>();
  for (const sequence of sequences) {
    const group = groups.get(sequence.group);
    if (group) group.push(sequence);
    else groups.set(sequence.group, [sequence]);
  }
  return new Map([...groups].map(([group, members]) => [group, sharedPrefixLength(members)]));
}

function layOut(
  members: number[],
  sequences: readonly TrainSequence[],
  prefixes: ReadonlyMap<number, number>,
): PackedRow {
  const builder = new RowBuilder();
  members.forEach((index, member) => {
    const sequence = sequences[index];
    if (sequence) builder.add(sequence, member, prefixes.get(sequence.group) ?? 0);
  });
  return builder.build(members);
}

class RowBuilder {
  readonly #tokens: number[] = [];
  readonly #segments: number[] = [];
  readonly #targets: number[] = [];
  readonly #at: number[] = [];
  readonly #member: number[] = [];
  readonly #prefixOfGroup = new Map<number, number>();

  add(sequence: TrainSequence, member: number, prefix: number): void {
    const parent = this.#parentOf(sequence, prefix);
    const start = this.#addSegment(sequence.tokens.subarray(prefix), parent, prefix);
    for (const token of sequence.trainable) {
      const at = start + token - 1 - prefix;
      this.#targets[at] = sequence.tokens[token] ?? -1;
      this.#at.push(at);
      this.#member.push(member);
    }
  }

  /** The segment of the group's common beginning; -1 without one. */
  #parentOf(sequence: TrainSequence, prefix: number): number {
    if (prefix === 0) return -1;
    const known = this.#prefixOfGroup.get(sequence.group);
    if (known !== undefined) return known;
    const segment = this.#segments.length / 4;
    this.#prefixOfGroup.set(sequence.group, segment);
    this.#addSegment(sequence.tokens.subarray(0, prefix), -1, 0);
    return segment;
  }

  #addSegment(tokens: Int32Array, parent: number, position: number): number {
    const start = this.#tokens.length;
    this.#segments.push(start, tokens.length, parent, position);
    for (const token of tokens) {
      this.#tokens.push(token);
      this.#targets.push(-1);
    }
    return start;
  }

  build(members: number[]): PackedRow {
    const row = {
      tokens: Int32Array.from(this.#tokens),
      segments: Int32Array.from(this.#segments),
      targets: Int32Array.from(this.#targets),
    };
    return { row, at: Int32Array.from(this.#at), member: Int32Array.from(this.#member), members };
  }
}
