/** What clients sent to training, from the socket to a blob, and where it lies in the blob. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { BlobTooLargeError, type BlobArea, type BlobDraft, type BlobStore } from '../../store/blob-store.ts';
import { ServiceError } from '../service-error.ts';
import { readContent } from './content.ts';
import type { IntakePool } from './intake-pool.ts';
import type { RowsRead, TrajectoriesRead } from './protocol.ts';

const BODY_FILE = 'body';
const CONTENT_FILE = 'content.jsonl.gz';

/** Bodies on their way at once, of one entity and of all: each may take as much of the disk as one body may have. */
const MAX_RECEIVING_OF_ENTITY = 32;
const MAX_RECEIVING = 256;

export interface Received<Read> {
  draft: BlobDraft;
  read: Read;
}

export class TrainingInputs {
  readonly #blobs: BlobStore;
  readonly #pool: IntakePool;
  readonly #maxBytes: number;
  /** Bodies on their way, by entity. One that sends many slowly must not keep the others out. */
  readonly #receiving = new Map<string, number>();

  constructor(blobs: BlobStore, pool: IntakePool, maxBytes: number) {
    this.#blobs = blobs;
    this.#pool = pool;
    this.#maxBytes = maxBytes;
  }

  /** A body with trajectory groups. The draft is the caller's to seal or discard. */
  receiveTrajectories(
    use: 'train' | 'log',
    entity: string,
    source: AsyncIterable<Uint8Array>,
  ): Promise<Received<TrajectoriesRead>> {
    return this.#receive(use === 'train' ? 'inputs' : 'trajectories', entity, source, (body, target) =>
      this.#pool.run({ kind: 'trajectories', use, source: body, target }, entity),
    );
  }

  /** A file of training rows. */
  receiveRows(entity: string, source: AsyncIterable<Uint8Array>): Promise<Received<RowsRead>> {
    return this.#receive('inputs', entity, source, (body, target) =>
      this.#pool.run({ kind: 'rows', source: body, target }, entity),
    );
  }

  async #receive<Read>(
    area: BlobArea,
    entity: string,
    source: AsyncIterable<Uint8Array>,
    read: (body: string, target: string) => Promise<Read>,
  ): Promise<Received<Read>> {
    this.#enter(entity);
    let draft: BlobDraft | null = null;
    try {
      draft = await this.#blobs.draft(area);
      await draft.write(BODY_FILE, source, this.#maxBytes);
      const result = await read(join(draft.directory, BODY_FILE), join(draft.directory, CONTENT_FILE));
      await rm(join(draft.directory, BODY_FILE));
      return { draft, read: result };
    } catch (error) {
      await draft?.discard();
      if (error instanceof BlobTooLargeError) {
        throw new ServiceError('too_large', `The body is larger than ${error.maxBytes} bytes.`);
      }
      throw error;
    } finally {
      this.#leave(entity);
    }
  }

  #enter(entity: string): void {
    const own = this.#receiving.get(entity) ?? 0;
    let all = 0;
    for (const count of this.#receiving.values()) all += count;
    if (own >= MAX_RECEIVING_OF_ENTITY || all >= MAX_RECEIVING) {
      throw new ServiceError('unavailable', 'Too many uploads at once; try again.');
    }
    this.#receiving.set(entity, own + 1);
  }

  #leave(entity: string): void {
    const left = (this.#receiving.get(entity) ?? 1) - 1;
    if (left === 0) this.#receiving.delete(entity);
    else this.#receiving.set(entity, left);
  }

  /** All that is kept for a job. */
  folder(key: string): string {
    return this.#blobs.path(key);
  }

  /** Lines of JSON, compressed. */
  file(key: string): string {
    return this.#blobs.path(key, CONTENT_FILE);
  }

  /** The same, decompressed. */
  content(key: string): AsyncIterable<Buffer> {
    return readContent(this.file(key));
  }
}
