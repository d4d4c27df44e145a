/**
 * Large answers, written in pieces: neither their text nor all that it is made from lies in memory at once, and others are served between
 * pieces.
 */
import { Readable } from 'node:stream';

/** Elements of a list that are written at once. */
const PIECE_ELEMENTS = 128;
/** Smaller pieces are written together. */
const PIECE_CHARS = 16 * 1024;

/** In the value of an answer: a list whose elements are made as they are written, some at a time. */
export class MadeList {
  readonly parts: Iterable<readonly unknown[]>;
  /** Elements have such lists in them. */
  readonly nested: boolean;

  constructor(parts: Iterable<readonly unknown[]>, nested = false) {
    this.parts = parts;
    this.nested = nested;
  }

  /** Nothing but `jsonPieces` knows how to write it. */
  toJSON(): never {
    throw new Error('A list that is made in parts cannot be written at once.');
  }
}

function* slices<T>(list: readonly T[]): Generator<readonly T[]> {
  for (let from = 0; from < list.length; from += PIECE_ELEMENTS) yield list.slice(from, from + PIECE_ELEMENTS);
}

/** Elements made from others. */
export function madeFrom<From>(list: ArrayLike<From>, make: (element: From) => unknown): MadeList {
  return new MadeList(
    (function* () {
      for (let from = 0; from < list.length; from += PIECE_ELEMENTS) {
        const length = Math.min(PIECE_ELEMENTS, list.length - from);
        yield Array.from({ length }, (_, at) => make(list[from + at] as From));
      }
    })(),
  );
}

/** What JSON.stringify gives, of an object that may hold lists of both kinds. */
export function answerPieces(answer: object): Readable {
  return Readable.from(gather(jsonPieces(answer)), { objectMode: false });
}

function* gather(pieces: Iterable<string>): Generator<string> {
  let text = '';
  for (const piece of pieces) {
    text += piece;
    if (text.length < PIECE_CHARS) continue;
    yield text;
    text = '';
  }
  if (text !== '') yield text;
}

function* jsonPieces(value: unknown): Generator<string> {
  if (value instanceof MadeList) yield* listPieces(value.parts, value.nested);
  else if (Array.isArray(value)) yield* listPieces(slices(value as unknown[]), false);
  else if (typeof value === 'object' && value !== null) yield* objectPieces(value);
  else yield JSON.stringify(value);
}

function* objectPieces(value: object): Generator<string> {
  let before = '{';
  for (const [key, member] of Object.entries(value)) {
    if (member === undefined) continue;
    yield `${before}${JSON.stringify(key)}:`;
    yield* jsonPieces(member);
    before = ',';
  }
  yield before === '{' ? '{}' : '}';
}

function* listPieces(parts: Iterable<readonly unknown[]>, nested: boolean): Generator<string> {
  let before = '[';
  for (const part of parts) {
    if (part.length === 0) continue;
    yield before;
    before = ',';
    if (!nested) {
      yield JSON.stringify(part).slice(1, -1);
      continue;
    }
    for (const [at, element] of part.entries()) {
      if (at > 0) yield ',';
      yield* jsonPieces(element);
    }
  }
  yield before === '[' ? '[]' : ']';
}
