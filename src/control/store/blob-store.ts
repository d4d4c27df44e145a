/**
 * Objects of one or more files: trajectories, adapters, snapshots, uploads. An object is written as a draft that nobody sees and
 * becomes visible whole: files and folder reach the disk before the rename, the parent folder after it.
 */
import { createHash, randomUUID } from 'node:crypto';
import { mkdirSync, readdirSync } from 'node:fs';
import { mkdir, open, readdir, rename, rm, stat, writeFile, type FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';

const BLOB_AREAS = ['adapters', 'snapshots', 'trajectories', 'inputs', 'uploads'] as const;
export type BlobArea = (typeof BLOB_AREAS)[number];

export interface StoredFile {
  bytes: number;
  /** 64 hex digits. */
  sha256: string;
}

/** The source had more bytes than it may. */
export class BlobTooLargeError extends Error {
  readonly maxBytes: number;
  constructor(maxBytes: number) {
    super(`More than ${maxBytes} bytes.`);
    this.name = 'BlobTooLargeError';
    this.maxBytes = maxBytes;
  }
}

export type BlobSource = AsyncIterable<Uint8Array> | Iterable<Uint8Array> | Uint8Array;

/** An object in the making. */
export interface BlobDraft {
  readonly key: string;
  /** For writers that take a path, such as a thread; `seal` brings what they wrote to the disk. */
  readonly directory: string;
  /** Streams one file. A source that throws leaves nothing behind but the draft. */
  write(file: string, source: BlobSource, maxBytes?: number): Promise<StoredFile>;
  /** Makes the object visible and durable. */
  seal(): Promise<void>;
  /** Idempotent, and allowed after a failed seal. */
  discard(): Promise<void>;
}

export interface BlobStore {
  draft(area: BlobArea): Promise<BlobDraft>;
  /** Path of a file of a sealed object, or of the object's folder. */
  path(key: string, file?: string): string;
  /** Idempotent. */
  remove(key: string): Promise<void>;
  /** Removes every object whose key is not in the set, and all drafts. For the start, when nothing is being written. */
  sweep(referenced: ReadonlySet<string>): Promise<number>;
}

const KEY = /^[a-z]+\/[0-9a-f-]{36}$/;
const FILE = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
const DRAFTS = 'drafts';

export class FolderBlobStore implements BlobStore {
  readonly #root: string;

  constructor(root: string) {
    this.#root = root;
    for (const folder of [DRAFTS, ...BLOB_AREAS]) mkdirSync(join(root, folder), { recursive: true, mode: 0o700 });
  }

  async draft(area: BlobArea): Promise<BlobDraft> {
    const id = randomUUID();
    const directory = join(this.#root, DRAFTS, id);
    await mkdir(directory, { mode: 0o700 });
    return new FolderDraft(directory, join(this.#root, area), id, `${area}/${id}`);
  }

  path(key: string, file?: string): string {
    if (!KEY.test(key)) throw new Error(`${key} is no key of an object.`);
    if (file === undefined) return join(this.#root, key);
    if (!FILE.test(file)) throw new Error(`${file} is no name of a file.`);
    return join(this.#root, key, file);
  }

  async remove(key: string): Promise<void> {
    await rm(this.path(key), { recursive: true, force: true });
  }

  async sweep(referenced: ReadonlySet<string>): Promise<number> {
    let removed = 0;
    for (const id of await readdir(join(this.#root, DRAFTS))) {
      await rm(join(this.#root, DRAFTS, id), { recursive: true, force: true });
      removed++;
    }
    for (const area of BLOB_AREAS) {
      for (const id of await readdir(join(this.#root, area))) {
        if (referenced.has(`${area}/${id}`)) continue;
        await rm(join(this.#root, area, id), { recursive: true, force: true });
        removed++;
      }
    }
    return removed;
  }
}

/** Whether any can be seen in a store's folder. Drafts are none. */
export function holdsObjects(root: string): boolean {
  return BLOB_AREAS.some((area) => {
    try {
      return readdirSync(join(root, area)).length > 0;
    } catch {
      return false;
    }
  });
}

class FolderDraft implements BlobDraft {
  readonly key: string;
  readonly directory: string;
  readonly #area: string;
  readonly #id: string;

  constructor(directory: string, area: string, id: string, key: string) {
    this.directory = directory;
    this.key = key;
    this.#area = area;
    this.#id = id;
  }

  async write(file: string, source: BlobSource, maxBytes = Number.MAX_SAFE_INTEGER): Promise<StoredFile> {
    if (!FILE.test(file)) throw new Error(`${file} is no name of a file.`);
    const handle = await open(join(this.directory, file), 'w', 0o600);
    try {
      const stored = await copyHashed(source instanceof Uint8Array ? [source] : source, handle, maxBytes);
      await handle.sync();
      return stored;
    } finally {
      await handle.close();
    }
  }

  async seal(): Promise<void> {
    await syncFolder(this.directory);
    await rename(this.directory, join(this.#area, this.#id));
    await syncPath(this.#area);
  }

  async discard(): Promise<void> {
    await rm(this.directory, { recursive: true, force: true });
    await rm(join(this.#area, this.#id), { recursive: true, force: true });
  }
}

async function copyHashed(
  source: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
  handle: FileHandle,
  maxBytes: number,
): Promise<StoredFile> {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of source) {
    bytes += chunk.length;
    if (bytes > maxBytes) throw new BlobTooLargeError(maxBytes);
    hash.update(chunk);
    // Not handle.write: it may write a part only.
    await writeFile(handle, chunk);
  }
  return { bytes, sha256: hash.digest('hex') };
}

/** What is in it first, of any depth. */
async function syncFolder(folder: string): Promise<void> {
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    await (entry.isDirectory() ? syncFolder(path) : syncPath(path));
  }
  await syncPath(folder);
}

async function syncPath(path: string): Promise<void> {
  const handle = await open(path, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** Objects that no row names any more. What cannot be removed now is swept at the next start: nobody who is done fails for it. */
export async function removeUnnamed(
  blobs: Pick<BlobStore, 'remove'>,
  keys: readonly string[],
  log: Pick<Logger, 'warn'>,
): Promise<void> {
  for (const key of keys) {
    await blobs.remove(key).catch((error: unknown) => log.warn({ err: error, key }, 'a blob was not removed'));
  }
}

/** Bytes of all files of an object's folder. */
export async function folderBytes(directory: string): Promise<number> {
  let total = 0;
  for (const file of await readdir(directory)) total += (await stat(join(directory, file))).size;
  return total;
}
