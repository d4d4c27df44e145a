/** A file of the store on its way to a reader, who never takes for whole what is damaged. */
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { open, type FileHandle } from 'node:fs/promises';
import { pipeline, Transform, type Readable, type TransformCallback } from 'node:stream';
import type { StoredFile } from '../store/blob-store.ts';
import { ServiceError } from './service-error.ts';

export interface StoredContent {
  bytes: number;
  content: Readable;
}

/** Read at once: a file that is no larger is known to be whole before anybody is told that there is one. */
const PIECE_BYTES = 2 ** 20;

/**
 * Of a file that the database names. Rejects with ServiceError where the disk has it no more, or has something else. Of a large one that shows
 * at its end, before which its content breaks off. `written`: what was stored; absent: the caller knows that it is whole.
 */
export async function openStored(path: string, written?: StoredFile): Promise<StoredContent> {
  const file = await open(path).catch((error: unknown) => {
    throw lost(error);
  });
  const bytes = await sizeOf(file);
  const source = file.createReadStream({ highWaterMark: PIECE_BYTES });
  if (written === undefined) return { bytes, content: source };
  const content = new Checked(path, written);
  // Until somebody listens its failure has no other witness.
  content.on('error', () => undefined);
  pipeline(source, content, () => undefined);
  await once(content, 'readable');
  return { bytes: written.bytes, content };
}

/** What the file system said of a file that the database names. */
export function lost(error: unknown): unknown {
  const { code } = error as { code?: unknown };
  return code === 'ENOENT' || code === 'ENOTDIR' ? missingFile(error) : error;
}

/** The causes are for the log alone. */
export function missingFile(cause: unknown): ServiceError {
  return new ServiceError('file_lost', "The file is missing in the server's storage.", null, null, { cause });
}

export function damagedFile(file: string): ServiceError {
  const cause = new Error(`${file} is not what was written.`);
  return new ServiceError('file_lost', "The file is damaged in the server's storage.", null, null, { cause });
}

/** Holds back the last piece until the digest of all is known. */
class Checked extends Transform {
  readonly #path: string;
  readonly #written: StoredFile;
  readonly #hash = createHash('sha256');
  #bytes = 0;
  #held: Buffer = Buffer.alloc(0);

  constructor(path: string, written: StoredFile) {
    super({ readableHighWaterMark: PIECE_BYTES });
    this.#path = path;
    this.#written = written;
  }

  override _transform(piece: Buffer, _encoding: string, done: TransformCallback): void {
    const before = this.#held;
    this.#hash.update(piece);
    this.#bytes += piece.length;
    this.#held = piece;
    // One that has grown is not read to its end.
    if (this.#bytes > this.#written.bytes) done(damagedFile(this.#path));
    else if (before.length === 0) done();
    else done(null, before);
  }

  override _flush(done: TransformCallback): void {
    if (this.#hash.digest('hex') === this.#written.sha256) done(null, this.#held);
    else done(damagedFile(this.#path));
  }
}

async function sizeOf(file: FileHandle): Promise<number> {
  try {
    return (await file.stat()).size;
  } catch (error) {
    await file.close();
    throw error;
  }
}
