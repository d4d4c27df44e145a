/**
 * Headers of safetensors files: 8 bytes of length (little-endian), that many bytes of JSON, then the data.
 * Every number is checked against the file before it is believed.
 */
import { isPlainObject } from '../../schemas/plain-object.ts';
import { GIT_LFS_MARK, GIT_LFS_POINTER, MissingFileError, ModelError } from './errors.ts';
import { Fields, show } from './fields.ts';
import { decodeUtf8, parseJsonObject, readExactly, readModelJson, resolveModelFile } from './json-file.ts';

const SINGLE_FILE = 'model.safetensors';
const INDEX_FILE = 'model.safetensors.index.json';

const MAX_HEADER_BYTES = 100 * 1024 * 1024;
const MAX_INDEX_BYTES = 64 * 1024 * 1024;
const MAX_TENSORS = 1_000_000;
const MAX_SHARDS = 4096;
const MAX_NAME = 1024;
const MAX_DIMENSIONS = 8;
const COMPARED_BYTES = 4 * 1024 * 1024;

/** Bytes per element of every dtype the format names. */
const DTYPE_BYTES: Readonly<Record<string, number>> = {
  BOOL: 1,
  U8: 1,
  I8: 1,
  F8_E5M2: 1,
  F8_E4M3: 1,
  F8_E8M0: 1,
  I16: 2,
  U16: 2,
  F16: 2,
  BF16: 2,
  I32: 4,
  U32: 4,
  F32: 4,
  F64: 8,
  I64: 8,
  U64: 8,
  C64: 8,
};

/** As found in the file; whether the dtype is one we run is decided by what the model needs. */
export interface StoredTensor {
  name: string;
  dtype: string;
  shape: number[];
  file: number;
  offset: number;
  bytes: number;
}

export interface WeightFile {
  name: string;
  path: string;
  size: number;
  header: Buffer;
}

export interface Weights {
  files: WeightFile[];
  tensors: Map<string, StoredTensor>;
}

/** One file wins over an index, as in transformers: a model saved again may leave the index of what was there before. */
export async function readWeights(directory: string): Promise<Weights> {
  const single = await resolveModelFile(directory, SINGLE_FILE);
  const index = single ? null : await readModelJson(directory, INDEX_FILE, MAX_INDEX_BYTES);
  if (!index && !single) {
    throw new ModelError(SINGLE_FILE, `is missing, and there is no ${INDEX_FILE}.`);
  }
  const placed = index ? readIndex(index) : null;
  const names = placed ? [...new Set(placed.values())].sort() : [SINGLE_FILE];
  if (names.length > MAX_SHARDS) throw new ModelError(INDEX_FILE, `names more than ${MAX_SHARDS} files.`);
  const files: WeightFile[] = [];
  const tensors = new Map<string, StoredTensor>();
  for (const [file, name] of names.entries()) {
    const opened = await openWeightFile(directory, name);
    files.push(opened);
    for (const tensor of parseHeader(opened, file)) addTensor(tensors, tensor, opened.name, placed);
  }
  for (const name of placed?.keys() ?? []) {
    if (!tensors.has(name))
      throw new ModelError(INDEX_FILE, `names ${show(name)}, which ${placed?.get(name)} does not have.`);
  }
  return { files, tensors };
}

function addTensor(
  all: Map<string, StoredTensor>,
  tensor: StoredTensor,
  file: string,
  placed: Map<string, string> | null,
): void {
  if (all.has(tensor.name)) throw new ModelError(file, `has ${show(tensor.name)}, which another file has as well.`);
  if (placed && placed.get(tensor.name) !== file) {
    throw new ModelError(file, `has ${show(tensor.name)}, which ${INDEX_FILE} does not place there.`);
  }
  all.set(tensor.name, tensor);
}

function readIndex(index: Record<string, unknown>): Map<string, string> {
  const map = new Fields(INDEX_FILE, index).get('weight_map');
  if (!isPlainObject(map)) throw new ModelError(INDEX_FILE, 'weight_map must be an object.');
  const placed = new Map<string, string>();
  for (const [name, file] of Object.entries(map)) {
    if (typeof file !== 'string' || !/^[^/\\\0]+\.safetensors$/.test(file)) {
      throw new ModelError(
        INDEX_FILE,
        `places ${show(name)} in ${show(file)}, which is not a plain safetensors file name.`,
      );
    }
    placed.set(name, file);
  }
  if (placed.size === 0) throw new ModelError(INDEX_FILE, 'weight_map is empty.');
  return placed;
}

export async function openWeightFile(
  directory: string,
  name: string,
  maxHeaderBytes = MAX_HEADER_BYTES,
): Promise<WeightFile> {
  const file = await resolveModelFile(directory, name);
  if (!file) throw new MissingFileError(name);
  if (file.size < 8) throw new ModelError(name, 'is truncated.');
  const start = await readExactly(name, file.path, 0, 8);
  if (GIT_LFS_MARK.startsWith(start.toString('latin1'))) throw new ModelError(name, GIT_LFS_POINTER);
  const length = start.readBigUInt64LE();
  if (length > BigInt(maxHeaderBytes))
    throw new ModelError(name, `has a header of ${length} bytes; at most ${maxHeaderBytes} are read.`);
  if (length > BigInt(file.size - 8))
    throw new ModelError(name, `has a header of ${length} bytes but is only ${file.size} bytes long.`);
  const header = await readExactly(name, file.path, 8, Number(length));
  return { name, path: file.path, size: file.size, header };
}

/** Checks that the tensors tile the data exactly: in range, no overlap, no hole, nothing behind the last. */
export function parseHeader(file: WeightFile, index: number): StoredTensor[] {
  if (file.header[0] !== 0x7b) throw new ModelError(file.name, 'has a header that does not start with {.');
  const header = parseJsonObject(file.name, decodeUtf8(file.name, file.header), { uniqueKeys: true });
  const start = 8 + file.header.length;
  const tensors: StoredTensor[] = [];
  for (const [name, entry] of Object.entries(header)) {
    if (name === '__metadata__') continue;
    if (name === '' || name.length > MAX_NAME)
      throw new ModelError(file.name, `has a tensor name of ${name.length} characters.`);
    tensors.push(parseEntry(file, index, start, name, entry));
    if (tensors.length > MAX_TENSORS) throw new ModelError(file.name, `has more than ${MAX_TENSORS} tensors.`);
  }
  let next = start;
  for (const tensor of tensors.slice().sort((a, b) => a.offset - b.offset || a.bytes - b.bytes)) {
    if (tensor.offset !== next) {
      const problem = tensor.offset < next ? 'overlaps the tensor before it' : 'leaves a hole before it';
      throw new ModelError(file.name, `${show(tensor.name)} ${problem}.`);
    }
    next += tensor.bytes;
  }
  if (next !== file.size) {
    throw new ModelError(
      file.name,
      `holds ${file.size} bytes but its header describes ${next}${next > file.size ? ': it is truncated' : ''}.`,
    );
  }
  return tensors;
}

function parseEntry(file: WeightFile, index: number, start: number, name: string, entry: unknown): StoredTensor {
  const label = show(name);
  const fail = (problem: string): never => {
    throw new ModelError(file.name, `${label} ${problem}`);
  };
  if (!isPlainObject(entry)) return fail('must be an object.');
  const { dtype, shape, data_offsets: offsets } = entry;
  const width = typeof dtype === 'string' && Object.hasOwn(DTYPE_BYTES, dtype) ? DTYPE_BYTES[dtype] : undefined;
  if (typeof dtype !== 'string' || width === undefined) return fail(`has the unknown dtype ${show(dtype)}.`);
  if (!isCounts(shape) || shape.length > MAX_DIMENSIONS) return fail(`has the invalid shape ${show(shape)}.`);
  if (!isCounts(offsets) || offsets.length !== 2) return fail(`has the invalid data_offsets ${show(offsets)}.`);
  const [begin = 0, end = 0] = offsets;
  if (begin > end || end > file.size - start) {
    const problem = `has data_offsets [${begin}, ${end}] outside the file's data of ${file.size - start} bytes`;
    return fail(begin > end ? `${problem}.` : `${problem}: the file is truncated, as by a download that did not end.`);
  }
  let bytes = width;
  for (const size of shape) {
    bytes *= size;
    if (!Number.isSafeInteger(bytes)) return fail(`has a shape ${show(shape)} that overflows.`);
  }
  if (bytes !== end - begin) return fail(`has ${end - begin} bytes, but ${dtype} ${show(shape)} needs ${bytes}.`);
  return { name, dtype, shape, file: index, offset: start + begin, bytes };
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((count) => Number.isSafeInteger(count) && count >= 0);
}

export async function haveSameBytes({ files }: Weights, one: StoredTensor, other: StoredTensor): Promise<boolean> {
  if (one.dtype !== other.dtype || one.bytes !== other.bytes) return false;
  for (let at = 0; at < one.bytes; at += COMPARED_BYTES) {
    const length = Math.min(COMPARED_BYTES, one.bytes - at);
    const read = ({ file, offset }: StoredTensor): Promise<Buffer> =>
      readExactly(files[file]?.name ?? 'weights', files[file]?.path ?? '', offset + at, length);
    const [left, right] = await Promise.all([read(one), read(other)]);
    if (!left.equals(right)) return false;
  }
  return true;
}
