/** Safetensors files of FP32 tensors with text metadata: what training writes, and reads back. */

import type { Hash } from 'node:crypto';
import { open, type FileHandle } from 'node:fs/promises';

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

/** Written and read at once: the digest of a piece holds up all else that the thread does. */
const PIECE_BYTES = 2 ** 20;

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

export interface ReadOptions {
  /** Takes all bytes of the file. */
  digest?: Hash;
  /** Of one read. */
  readBytes?: number;
}

/**
 * Throws where the file is not one that encodeTensors wrote. Each tensor has memory of its own: files of high ranks with their moments are
 * larger than a Buffer may be.
 */
export async function readTensors(path: string, options: ReadOptions = {}): Promise<TensorFile> {
  const file = await open(path, 'r');
  try {
    return await decodeTensors(file, (await file.stat()).size, options);
  } finally {
    await file.close();
  }
}

async function decodeTensors(file: FileHandle, size: number, { digest, readBytes }: ReadOptions): Promise<TensorFile> {
  let at = 0;
  const fill = async (into: ArrayBuffer) => {
    for (let done = 0; done < into.byteLength;) {
      const piece = new Uint8Array(into, done, Math.min(readBytes ?? PIECE_BYTES, into.byteLength - done));
      const { bytesRead } = await file.read(piece, 0, piece.length, at);
      if (bytesRead === 0) throw new Error('The tensor file is cut off.');
      digest?.update(piece.subarray(0, bytesRead));
      done += bytesRead;
      at += bytesRead;
    }
    return into;
  };
  const length = Number(new DataView(await fill(new ArrayBuffer(8))).getBigUint64(0, true));
  if (length > size - at) throw new Error('The tensor file is cut off.');
  const head = new TextDecoder().decode(await fill(new ArrayBuffer(length)));
  const { __metadata__: metadata, ...entries } = JSON.parse(head) as { __metadata__?: Record<string, string> } & Record<
    string,
    Entry
  >;
  const data = at;
  const tensors: FloatTensor[] = [];
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [begin, end],
    },
  ] of Object.entries(entries)) {
    const bytes = 4 * shape.reduce((product, each) => product * each, 1);
    if (dtype !== 'F32' || begin !== at - data || end - begin !== bytes || bytes > size - at) {
      throw new Error(`Tensor ${name} of the file is not whole.`);
    }
    tensors.push({ name, shape, values: new Float32Array(await fill(new ArrayBuffer(bytes))) });
  }
  if (at !== size) throw new Error('The tensor file is longer than its tensors.');
  return { tensors, metadata: metadata ?? {} };
}
