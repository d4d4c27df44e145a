/** Safetensors files of FP32 tensors with text metadata: what training writes, and reads back. */

import { open } from 'node:fs/promises';

export interface FloatTensor {
  name: string;
  shape: number[];
  values: Float32Array;
}

export interface TensorFile {
  tensors: FloatTensor[];
  metadata: Record<string, string>;
}

const HEADER_ALIGNMENT = 8;

const PIECE_BYTES = 2 ** 20;

/** One read of a file takes less than 2 GiB, and so does `readFile` in all; adapters of a high rank with their moments are larger. */
const READ_BYTES = 2 ** 30;

/** The whole file. Throws where it is cut while it is read. */
export async function readWhole(path: string, readBytes = READ_BYTES): Promise<Uint8Array> {
  const file = await open(path, 'r');
  try {
    const bytes = Buffer.allocUnsafeSlow((await file.stat()).size);
    for (let at = 0; at < bytes.length;) {
      const { bytesRead } = await file.read(bytes, at, Math.min(readBytes, bytes.length - at), at);
      if (bytesRead === 0) throw new Error('The tensor file is cut off.');
      at += bytesRead;
    }
    return bytes;
  } finally {
    await file.close();
  }
}

/** The file in pieces that share the tensors' memory; little-endian, tensors in the order given. */
export function* encodeTensors({ tensors, metadata }: TensorFile): Generator<Uint8Array> {
  let offset = 0;
  const entries = tensors.map(({ name, shape, values }) => {
    const begin = offset;
    offset += values.byteLength;
    return [name, { dtype: 'F32', shape, data_offsets: [begin, offset] }] as const;
  });
  const header = JSON.stringify(Object.fromEntries([['__metadata__', metadata], ...entries]));
  const length = Math.ceil(Buffer.byteLength(header) / HEADER_ALIGNMENT) * HEADER_ALIGNMENT;
  const head = Buffer.alloc(8 + length, ' ');
  head.writeBigUInt64LE(BigInt(length), 0);
  head.write(header, 8, 'utf8');
  yield head;
  for (const { values } of tensors) {
    for (let at = 0; at < values.byteLength; at += PIECE_BYTES) {
      const size = Math.min(PIECE_BYTES, values.byteLength - at);
      yield new Uint8Array(values.buffer, values.byteOffset + at, size);
    }
  }
}

interface Entry {
  dtype: string;
  shape: number[];
  data_offsets: [number, number];
}

/** Throws where the file is not one that encodeTensors wrote; values share its memory where they lie evenly. */
export function decodeTensors(file: Uint8Array): TensorFile {
  const bytes = Buffer.from(file.buffer, file.byteOffset, file.byteLength);
  if (bytes.length < 8) throw new Error('The tensor file is cut off.');
  const length = Number(bytes.readBigUInt64LE(0));
  if (length > bytes.length - 8) throw new Error('The tensor file is cut off.');
  const header = JSON.parse(bytes.toString('utf8', 8, 8 + length)) as Record<string, unknown>;
  const { __metadata__: metadata, ...entries } = header as { __metadata__?: Record<string, string> } & Record<
    string,
    Entry
  >;
  const data = bytes.subarray(8 + length);
  const tensors = Object.entries(entries).map(([name, entry]) => ({
    name,
    shape: entry.shape,
    values: readValues(data, name, entry),
  }));
  return { tensors, metadata: metadata ?? {} };
}

function readValues(data: Buffer, name: string, { dtype, shape, data_offsets: [begin, end] }: Entry): Float32Array {
  const count = shape.reduce((product, size) => product * size, 1);
  if (dtype !== 'F32' || end - begin !== 4 * count || begin < 0 || end > data.length) {
    throw new Error(`Tensor ${name} of the file is not whole.`);
  }
  const at = data.byteOffset + begin;
  if (at % 4 === 0) return new Float32Array(data.buffer, at, count);
  return new Float32Array(Uint8Array.from(data.subarray(begin, end)).buffer);
}
