/**
 * The header of a GGUF file: metadata and the table of tensors, every number checked against the file before it is believed.
 *
 * Ours rather than a library's: @huggingface/gguf (0.4.6) lets a key given twice win silently, cuts strings at the end of a
 * chunk that it fetched, reads what is missing from a truncated file as zeros, names no key in its errors, and brings 5 MB.
 */
import { GIT_LFS_MARK, GIT_LFS_POINTER, ModelError } from '../errors.ts';
import { show } from '../fields.ts';
import type { JsonObject } from '../json-file.ts';
import { FileCursor } from './cursor.ts';
import {
  ALIGNMENT_KEY,
  DEFAULT_ALIGNMENT,
  GGUF_MAGIC,
  storedBytes,
  storedName,
  STORED_TYPES,
  VALUE_BYTES,
  valueType,
  type StoredName,
  type ValueType,
} from './format.ts';

/** Bounds of what is read; real files of our families stay far below. */
const MAX_HEADER_BYTES = 256 * 1024 * 1024;
const MAX_KEYS = 65_536;
const MAX_TENSORS = 100_000;
const MAX_ARRAY = 2 ** 22;
/** Entries of all arrays together. */
const MAX_ENTRIES = 2 ** 24;
const MAX_KEY_BYTES = 65_535;
const MAX_STRING_BYTES = 64 * 1024 * 1024;
const MAX_NAME_BYTES = 1024;
const MAX_DIMENSIONS = 4;
const MAX_ALIGNMENT = 2 ** 20;

export interface GgufTensor {
  name: string;
  type: StoredName;
  /** Row-major: the format lists the fastest dimension first, here it is last. */
  shape: number[];
  /** Absolute. */
  offset: number;
  bytes: number;
}

export interface GgufHeader {
  path: string;
  /** For messages. */
  file: string;
  size: number;
  /** Without a prototype. 64-bit numbers beyond 2^53 are rounded; no key that we read may be that large. */
  metadata: JsonObject;
  tensors: Map<string, GgufTensor>;
  /** Where the tensors begin: all before it is the header. */
  dataOffset: number;
}

export function readGgufHeader(path: string, file: string): GgufHeader {
  let cursor: FileCursor;
  try {
    cursor = new FileCursor(path, file, MAX_HEADER_BYTES);
  } catch {
    throw new ModelError(file, 'cannot be opened.');
  }
  try {
    return new HeaderReader(cursor).read(path);
  } finally {
    cursor.close();
  }
}

class HeaderReader {
  readonly #cursor: FileCursor;
  #entries = 0;

  constructor(cursor: FileCursor) {
    this.#cursor = cursor;
  }

  read(path: string): GgufHeader {
    const { file, size } = this.#cursor;
    this.#readVersion();
    const tensorCount = this.#count('the number of tensors', 24, MAX_TENSORS);
    const keyCount = this.#count('the number of keys', 13, MAX_KEYS);
    const metadata = this.#readMetadata(keyCount);
    const stored = this.#readTensors(tensorCount);
    const alignment = this.#alignment(metadata);
    const dataOffset = Math.ceil(this.#cursor.position / alignment) * alignment;
    const tensors = new Map(
      stored.map(({ offset, ...tensor }) => [tensor.name, this.#place(tensor, offset, dataOffset, alignment)]),
    );
    this.#refuseOverlap([...tensors.values()]);
    return { path, file, size, metadata, tensors, dataOffset };
  }

  #readVersion(): void {
    const cursor: FileCursor = this.#cursor;
    const magic = cursor.bytes(4, 'the file').toString('latin1');
    if (GIT_LFS_MARK.startsWith(magic)) throw new ModelError(cursor.file, GIT_LFS_POINTER);
    if (magic !== GGUF_MAGIC)
      cursor.fail('the file', 'does not begin with GGUF. Name a GGUF file, or the directory of a model.');
    const version = cursor.uint32('the version');
    if (version === 2 || version === 3) return;
    const known = (version & 0xffff) === 0 ? 'is big-endian' : `is version ${version}`;
    cursor.fail('the file', `${known}; little-endian versions 2 and 3 are supported.`);
  }

  #count(what: string, least: number, most: number): number {
    const count = this.#cursor.uint64(what);
    if (count > BigInt(most)) this.#cursor.fail(what, `is ${count}; at most ${most} are read.`);
    return this.#cursor.room(count, least, what);
  }

  #readMetadata(count: number): JsonObject {
    const metadata = Object.create(null) as JsonObject;
    for (let i = 0; i < count; i++) {
      const key = this.#cursor.string(MAX_KEY_BYTES, `key ${i}`);
      if (Object.hasOwn(metadata, key)) this.#cursor.fail(show(key), 'is given twice.');
      metadata[key] = this.#readValue(this.#readType(show(key)), show(key));
    }
    return metadata;
  }

  #readType(what: string): ValueType {
    const id = this.#cursor.uint32(what);
    return valueType(id) ?? this.#cursor.fail(what, `has the unknown value type ${id}.`);
  }

  #readValue(type: ValueType, what: string): unknown {
    if (type === 'string') return this.#cursor.string(MAX_STRING_BYTES, what);
    if (type === 'array') return this.#readArray(what);
    return (
      readNumber(type, this.#cursor.bytes(VALUE_BYTES[type], what)) ??
      this.#cursor.fail(what, 'is a truth value that is neither 0 nor 1.')
    );
  }

  #readArray(what: string): unknown[] {
    const type = this.#readType(what);
    if (type === 'array') this.#cursor.fail(what, 'is an array of arrays.');
    const length = this.#cursor.uint64(what);
    if (length > BigInt(MAX_ARRAY))
      this.#cursor.fail(what, `is an array of ${length} entries; at most ${MAX_ARRAY} are read.`);
    const count = this.#cursor.room(length, VALUE_BYTES[type], what);
    this.#entries += count;
    if (this.#entries > MAX_ENTRIES) this.#cursor.fail(what, `brings the arrays to more than ${MAX_ENTRIES} entries.`);
    const values: unknown[] = [];
    for (let i = 0; i < count; i++) values.push(this.#readValue(type, what));
    return values;
  }

  #readTensors(count: number): Unplaced[] {
    const names = new Set<string>();
    const tensors: Unplaced[] = [];
    for (let i = 0; i < count; i++) {
      const name = this.#cursor.string(MAX_NAME_BYTES, `the name of tensor ${i}`);
      if (names.has(name)) this.#cursor.fail(`tensor ${show(name)}`, 'is listed twice.');
      names.add(name);
      tensors.push(this.#readTensor(name));
    }
    return tensors;
  }

  #readTensor(name: string): Unplaced {
    const cursor: FileCursor = this.#cursor;
    const what = `tensor ${show(name)}`;
    const dimensions = cursor.uint32(what);
    if (dimensions < 1 || dimensions > MAX_DIMENSIONS)
      cursor.fail(what, `has ${dimensions} dimensions; 1 to ${MAX_DIMENSIONS} are possible.`);
    const shape: number[] = [];
    let elements = 1n;
    for (let i = 0; i < dimensions; i++) {
      const size = cursor.uint64(what);
      elements *= size;
      if (size === 0n || elements > BigInt(Number.MAX_SAFE_INTEGER))
        cursor.fail(what, `has the impossible size ${size} in dimension ${i}.`);
      shape.unshift(Number(size));
    }
    const id = cursor.uint32(what);
    const type = storedName(id);
    if (!type) cursor.fail(what, `has type number ${id}, which is none of the format's.`);
    const block = STORED_TYPES[type].elements;
    const row = shape.at(-1) ?? 0;
    if (row % block !== 0) cursor.fail(what, `has rows of ${row} elements; ${type} is stored in blocks of ${block}.`);
    return { name, type, shape, bytes: storedBytes(type, Number(elements)), offset: cursor.uint64(what) };
  }

  #alignment(metadata: JsonObject): number {
    const value = metadata[ALIGNMENT_KEY] ?? DEFAULT_ALIGNMENT;
    const ok =
      typeof value === 'number' &&
      Number.isInteger(value) &&
      value > 0 &&
      value <= MAX_ALIGNMENT &&
      (value & (value - 1)) === 0;
    if (!ok) this.#cursor.fail(ALIGNMENT_KEY, `must be a power of two up to ${MAX_ALIGNMENT}, got ${show(value)}.`);
    return value;
  }

  #place(tensor: Omit<GgufTensor, 'offset'>, offset: bigint, dataOffset: number, alignment: number): GgufTensor {
    const what = `tensor ${show(tensor.name)}`;
    const { size } = this.#cursor;
    if (offset % BigInt(alignment) !== 0n)
      this.#cursor.fail(what, `begins at ${offset}, which is not a multiple of ${ALIGNMENT_KEY} ${alignment}.`);
    if (offset > BigInt(size) || dataOffset + Number(offset) + tensor.bytes > size) {
      this.#cursor.fail(
        what,
        `lies outside the file: ${tensor.bytes} bytes from ${offset} on, of ${Math.max(0, size - dataOffset)}.`,
      );
    }
    return { ...tensor, offset: dataOffset + Number(offset) };
  }

  #refuseOverlap(tensors: GgufTensor[]): void {
    let end = 0;
    for (const tensor of tensors.sort((a, b) => a.offset - b.offset)) {
      if (tensor.offset < end) this.#cursor.fail(`tensor ${show(tensor.name)}`, 'overlaps the tensor before it.');
      end = tensor.offset + tensor.bytes;
    }
  }
}

/** `offset` is that of the file: within the data. */
type Unplaced = Omit<GgufTensor, 'offset'> & { offset: bigint };

function readNumber(type: Exclude<ValueType, 'string' | 'array'>, bytes: Buffer): number | boolean | undefined {
  switch (type) {
    case 'uint8':
      return bytes.readUInt8();
    case 'int8':
      return bytes.readInt8();
    case 'uint16':
      return bytes.readUInt16LE();
    case 'int16':
      return bytes.readInt16LE();
    case 'uint32':
      return bytes.readUInt32LE();
    case 'int32':
      return bytes.readInt32LE();
    case 'float32':
      return shortest(bytes.readFloatLE());
    case 'float64':
      return bytes.readDoubleLE();
    case 'uint64':
      return Number(bytes.readBigUInt64LE());
    case 'int64':
      return Number(bytes.readBigInt64LE());
    case 'bool': {
      const byte = bytes.readUInt8();
      return byte > 1 ? undefined : byte === 1;
    }
  }
}

/** The shortest decimal number that rounds to a float: what the author wrote, 0.7 rather than 0.699999988. */
function shortest(value: number): number {
  for (let digits = 1; digits < 9; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) return short;
  }
  return value;
}
