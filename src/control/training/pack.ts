/**
 * Token sequences -> packed rows. Sequences of one group that begin alike store their common beginning once per row: a segment
 * that the others have as their parent. One row is one forward and backward pass.
 */
import { PAGE_SIZE } from '../engine/native.ts';
import type { RowRoom, TrainRow } from '../engine/training.ts';

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

/** Rows of any size; in whole numbers, which snapshots can hold. */
export const ENDLESS_ROOM: RowRoom = {
  maxTokens: Number.MAX_SAFE_INTEGER,
  bytes: Number.MAX_SAFE_INTEGER,
  tokenBytes: 0,
  pageBytes: 0,
};

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

interface Size {
  tokens: number;
  bytes: number;
}

interface OpenRow extends Size {
  members: number[];
  groups: Set<number>;
}

/** Rows that are looked at for one more sequence. A hundred thousand sequences must not keep the server from answering. */
const MAX_OPEN_ROWS = 256;

/**
 * Sequences of a row. Each has its own copy of the page in which a common beginning ends, and all copies are written between two looks at
 * whether somebody waits to be served: of an 8B model's layer 32 MiB for so many.
 */
export const MAX_MEMBERS = 512;

/** First fit in the order given. A sequence that is too large for a row has one of its own: whoever takes rows refuses it. */
export function packRows(
  sequences: readonly TrainSequence[],
  rowLength: number,
  room: RowRoom = ENDLESS_ROOM,
): PackedRow[] {
  const prefixes = prefixLengths(sequences);
  const most = { tokens: Math.min(rowLength, room.maxTokens), bytes: room.bytes };
  let shortest = Infinity;
  for (const { tokens, group } of sequences) shortest = Math.min(shortest, tokens.length - (prefixes.get(group) ?? 0));
  const least = { tokens: shortest, bytes: shortest * room.tokenBytes };
  const rows: OpenRow[] = [];
  let open: OpenRow[] = [];
  sequences.forEach(({ tokens, group }, index) => {
    const shared = prefixes.get(group) ?? 0;
    const own = segmentSize(tokens.length - shared, shared, room);
    // The common beginning comes with the first sequence of its group.
    const first = sum(segmentSize(shared, 0, room), own);
    let row = open.find((each) => isRoom(each, own, most) && (each.groups.has(group) || isRoom(each, first, most)));
    if (!row) {
      row = { tokens: 0, bytes: 0, members: [], groups: new Set() };
      rows.push(row);
      open.push(row);
      if (open.length > MAX_OPEN_ROWS) open.shift();
    }
    Object.assign(row, sum(row, row.groups.has(group) ? own : first));
    row.members.push(index);
    row.groups.add(group);
    // A row without room for the shortest is not looked at again.
    if (row.members.length >= MAX_MEMBERS || !isRoom(row, least, most))
      open = open.filter((candidate) => candidate !== row);
  });
  return rows.map(({ members }) => layOut(members, sequences, prefixes));
}

/** A segment has pages of its own, of its parent's last one, where that is not full, a copy. */
function segmentSize(tokens: number, position: number, { tokenBytes, pageBytes }: RowRoom): Size {
  if (tokens === 0) return { tokens: 0, bytes: 0 };
  const pages = Math.ceil(((position % PAGE_SIZE) + tokens) / PAGE_SIZE);
  return { tokens, bytes: tokens * tokenBytes + pages * pageBytes };
}

function isRoom(row: Size, more: Size, most: Size): boolean {
  return row.tokens + more.tokens <= most.tokens && row.bytes + more.bytes <= most.bytes;
}

function sum(x: Size, y: Size): Size {
  return { tokens: x.tokens + y.tokens, bytes: x.bytes + y.bytes };
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
