/** What clients sent to training, from the socket to a blob, and where it lies in the blob. */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { BlobTooLargeError, type BlobArea, type BlobDraft, type BlobStore } from '../../store/blob-store.ts';
import type { Receiving } from '../receiving.ts';
import { ServiceError } from '../service-error.ts';
import { readContent } from './content.ts';
import type { IntakePool } from './intake-pool.ts';
import type { RowsRead, TrajectoriesRead } from './protocol.ts';

const BODY_FILE = 'body';
const CONTENT_FILE = 'content.jsonl.gz';

export interface Received<Read> {
  draft: BlobDraft;
  read: Read;
}

export class TrainingInputs {
  readonly #blobs: BlobStore;
  readonly #pool: IntakePool;
  readonly #receiving: Receiving;
  readonly #maxBytes: number;

  constructor(blobs: BlobStore, pool: IntakePool, receiving: Receiving, maxBytes: number) {
    this.#blobs = blobs;
    this.#pool = pool;
    this.#receiving = receiving;
    this.#maxBytes = maxBytes;
  }

  /** A body with trajectory groups. The draft is the caller's to seal or discard. */
  receiveTrajectories(
    use: 'train' | 'log',
    entity: string,
    source: AsyncIterable<Uint8Array>,
  ): Promise<Received<TrajectoriesRead>> {
    const read = (body: string, target: string) =>
      this.#pool.run({ kind: 'trajectories', use, source: body, target }, entity);
    const area = use === 'train' ? 'inputs' : 'trajectories';
    return this.#receiving.run(entity, () => this.#receive(area, source, read));
  }

  /** A file of training rows. */
  receiveRows(entity: string, source: AsyncIterable<Uint8Array>): Promise<Received<RowsRead>> {
    const read = (body: string, target: string) => this.#pool.run({ kind: 'rows', source: body, target }, entity);
    return this.#receiving.run(entity, () => this.#receive('inputs', source, read));
  }

  async #receive<Read>(
    area: BlobArea,
    source: AsyncIterable<Uint8Array>,
    read: (body: string, target: string) => Promise<Read>,
  ): Promise<Received<Read>> {
    const draft = await this.#blobs.draft(area);
    try {
      await draft.write(BODY_FILE, source, this.#maxBytes);
      const result = await read(join(draft.directory, BODY_FILE), join(draft.directory, CONTENT_FILE));
      await rm(join(draft.directory, BODY_FILE));
      return { draft, read: result };
    } catch (error) {
      await draft.discard();
      if (error instanceof BlobTooLargeError) {
        throw new ServiceError('too_large', `The body is larger than ${error.maxBytes} bytes.`);
      }
      throw error;
    }
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
