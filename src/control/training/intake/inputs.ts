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

/** As it came, in a draft. */
interface Body {
  draft: BlobDraft;
  bytes: number;
  sha256: string;
}

/** Reads the body `from`, and writes what is kept of it. */
type Read<Result> = (from: string, target: string, bytes: number) => Promise<Result>;

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

  /** Trajectory groups that are only logged. A draft is the caller's to seal or discard. */
  receiveLog(entity: string, source: AsyncIterable<Uint8Array>): Promise<Received<TrajectoriesRead>> {
    return this.#receiving.run(entity, async () => {
      const body = await this.#receive('trajectories', source);
      return this.#read(body, this.#readTrajectories('log', entity));
    });
  }

  /** Trajectory groups of a job. `find`: what is known of a body by its SHA-256; where there is something nothing is read or kept. */
  receiveTrajectories<Known>(
    entity: string,
    source: AsyncIterable<Uint8Array>,
    find: (digest: string) => Promise<Known | null>,
  ): Promise<Received<TrajectoriesRead> | { known: Known }> {
    return this.#receiving.run(entity, async () => {
      const body = await this.#receive('inputs', source);
      const known = await discarding(body.draft, () => find(body.sha256));
      if (known === null) return this.#read(body, this.#readTrajectories('train', entity));
      await body.draft.discard();
      return { known };
    });
  }

  /** A file of training rows. */
  receiveRows(entity: string, source: AsyncIterable<Uint8Array>): Promise<Received<RowsRead>> {
    return this.#receiving.run(entity, async () => {
      const body = await this.#receive('inputs', source);
      return this.#read(body, (from, target, bytes) =>
        this.#pool.run({ kind: 'rows', source: from, target }, entity, bytes),
      );
    });
  }

  #readTrajectories(use: 'train' | 'log', entity: string): Read<TrajectoriesRead> {
    return (from, target, bytes) => this.#pool.run({ kind: 'trajectories', use, source: from, target }, entity, bytes);
  }

  async #receive(area: BlobArea, source: AsyncIterable<Uint8Array>): Promise<Body> {
    const draft = await this.#blobs.draft(area);
    return discarding(draft, async () => {
      return { draft, ...(await draft.write(BODY_FILE, source, this.#maxBytes)) };
    });
  }

  async #read<Result>({ draft, bytes }: Body, read: Read<Result>): Promise<Received<Result>> {
    return discarding(draft, async () => {
      const result = await read(join(draft.directory, BODY_FILE), join(draft.directory, CONTENT_FILE), bytes);
      await rm(join(draft.directory, BODY_FILE));
      return { draft, read: result };
    });
  }

  /** All that is kept for a job. */
  folder(key: string): string {
    return this.#blobs.path(key);
  }

  /** Lines of JSON, compressed. */
  file(key: string): string {
    return this.#blobs.path(key, CONTENT_FILE);
  }

  /** The same, decompressed. Ends with an error where the file is damaged. */
  content(key: string): AsyncIterable<Buffer> {
    return readContent(this.file(key));
  }
}

/** Where the work fails nothing of the draft stays. */
async function discarding<Result>(draft: BlobDraft, work: () => Promise<Result>): Promise<Result> {
  try {
    return await work();
  } catch (error) {
    await draft.discard();
    if (error instanceof BlobTooLargeError) {
      throw new ServiceError('too_large', `The body is larger than ${error.maxBytes} bytes.`);
    }
    throw error;
  }
}
