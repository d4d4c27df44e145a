/** The artifact store: files are uploaded into an open artifact, which is then committed under a version and has a URL. */
import { createHash, randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { Logger } from 'pino';
import { isPlainObject } from '../../../schemas/plain-object.ts';
import { TransitionError } from '../../lifecycle.ts';
import { invalid } from '../../../schemas/validation-error.ts';
import type { ArtifactRepository, StoredArtifact } from '../../store/artifact-repository.ts';
import { BlobTooLargeError, removeUnnamed, type BlobStore, type StoredFile } from '../../store/blob-store.ts';
import type { RowPage } from '../../store/row-page.ts';
import type { Receiving } from '../receiving.ts';
import { notFound, ServiceError } from '../service-error.ts';
import type { StorageQuota } from '../storage-quota.ts';
import { openStored, type StoredContent } from '../stored-file.ts';
import { formatArtifactUrl } from './artifact-url.ts';

export interface ArtifactServiceOptions {
  repository: ArtifactRepository;
  blobs: BlobStore;
  quota: StorageQuota;
  receiving: Receiving;
  /** Bytes of one file. */
  maxBytes: number;
  log: Logger;
}

export interface NewArtifact {
  entity: string | null;
  project: string;
  name: string;
  type: string;
  metadata: Record<string, unknown>;
}

export interface ArtifactView {
  id: string;
  entity: string;
  project: string;
  name: string;
  type: string;
  state: string;
  version: string | null;
  url: string | null;
  metadata: unknown;
  createdAt: string;
  files: { name: string; bytes: number; sha256: string }[];
}

/** The file that holds training rows, by any of its names. */
const DATA_FILES = ['train.jsonl', 'trajectories.jsonl'];
const METADATA_FILE = 'metadata.json';

const FILE_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;
const MAX_FILES = 64;
const MAX_OPEN = 100;
const MAX_METADATA_BYTES = 2 ** 20;
/** Of an artifact itself, as JSON: it comes with every list, and its row outlives it. */
const MAX_OWN_METADATA = 2 ** 16;
/** An artifact that is not committed within this time is removed. */
const OPEN_MS = 24 * 3600 * 1000;
const CONTENT = 'content';

export class ArtifactService {
  readonly #options: ArtifactServiceOptions;

  constructor(options: ArtifactServiceOptions) {
    this.#options = options;
  }

  async create(caller: string, artifact: NewArtifact): Promise<ArtifactView> {
    if (artifact.entity !== null && artifact.entity !== caller) {
      throw new ServiceError('forbidden', 'The API key does not belong to this entity.', 'entity');
    }
    const { repository } = this.#options;
    const { project, name, type, metadata } = artifact;
    if (JSON.stringify(metadata).length > MAX_OWN_METADATA) {
      throw invalid(['body', 'metadata'], `More than ${MAX_OWN_METADATA} characters; upload it as a file.`, 'too_long');
    }
    await this.#options.quota.check(caller);
    const id = randomUUID();
    const createdAt = new Date().toISOString();
    const begun = { id, entity: caller, project, name, type, metadata, createdAt };
    if (!(await repository.insert(begun, MAX_OPEN))) {
      throw new ServiceError('queue_full', `${MAX_OPEN} artifacts are open; commit or delete one.`);
    }
    return this.get(id, caller);
  }

  async get(id: string, entity: string): Promise<ArtifactView> {
    return toView(await this.#require(id, entity));
  }

  async page(entity: string, after: string | null, limit: number): Promise<RowPage<ArtifactView>> {
    const found = await this.#options.repository.page(entity, after, limit);
    if (found === null) throw invalid(['query', 'after'], 'There is no such artifact.');
    return { ...found, rows: found.rows.map(toView) };
  }

  async upload(
    id: string,
    entity: string,
    file: string,
    source: AsyncIterable<Uint8Array>,
  ): Promise<{ name: string; bytes: number; sha256: string }> {
    if (!FILE_NAME.test(file)) {
      throw invalid(['path', 'file'], 'A file name has letters, digits, dots, hyphens and underscores, 128 at most.');
    }
    const artifact = await this.#require(id, entity);
    if (artifact.state !== 'open') throw conflict(artifact.state);
    await this.#options.quota.check(entity);
    return this.#options.receiving.run(entity, () => this.#receive(id, entity, file, source));
  }

  async #receive(
    id: string,
    entity: string,
    file: string,
    source: AsyncIterable<Uint8Array>,
  ): Promise<{ name: string; bytes: number; sha256: string }> {
    const { repository, blobs, maxBytes, quota, log } = this.#options;
    const draft = await blobs.draft('uploads');
    try {
      const limit = file === METADATA_FILE ? Math.min(maxBytes, MAX_METADATA_BYTES) : maxBytes;
      const { bytes, sha256 } = await draft.write(CONTENT, source, limit);
      await quota.check(entity, bytes);
      await draft.seal();
      const before = await repository.putFile(id, { name: file, blobKey: draft.key, bytes, sha256 }, MAX_FILES);
      if (before === 'full') throw new ServiceError('conflict', `An artifact may have ${MAX_FILES} files.`);
      await removeUnnamed(blobs, before === null ? [] : [before], log);
      return { name: file, bytes, sha256 };
    } catch (error) {
      await draft.discard();
      if (error instanceof TransitionError) throw conflict(error.state);
      if (error instanceof BlobTooLargeError) {
        throw new ServiceError('too_large', `The file is larger than ${error.maxBytes} bytes.`);
      }
      throw error;
    }
  }

  /** Repeated, it returns the same. Content that the newest version of the name has already is that version. */
  async commit(id: string, entity: string): Promise<ArtifactView> {
    const { repository, blobs, log } = this.#options;
    const before = await repository.committed(id, entity);
    if (before !== null) return toView(before);
    const artifact = await this.#require(id, entity);
    if (artifact.files.length === 0) throw new ServiceError('conflict', 'The artifact has no file yet.');
    await this.#checkMetadata(artifact);
    const hash = createHash('sha256').update(JSON.stringify([artifact.type, artifact.metadata]));
    for (const { name, sha256 } of artifact.files) hash.update(`\n${name} ${sha256}`);
    try {
      const committed = await repository.commit(artifact, hash.digest('hex'));
      // A file came while those before it were looked at.
      if (committed === null) return await this.commit(id, entity);
      await removeUnnamed(blobs, committed.blobs, log);
      return await this.get(committed.id, entity);
    } catch (error) {
      // The same request came twice at once.
      if (error instanceof TransitionError) return this.commit(id, entity);
      throw error;
    }
  }

  /** The bytes of one file. */
  async read(id: string, entity: string, file: string): Promise<StoredContent> {
    const artifact = await this.#require(id, entity);
    const found = artifact.files.find(({ name }) => name === file);
    if (found === undefined) throw notFound('file of the artifact');
    try {
      return await openStored(this.#options.blobs.path(found.blobKey, CONTENT), found);
    } catch (error) {
      const { files } = await this.#require(id, entity);
      if (files.some(({ blobKey }) => blobKey === found.blobKey)) throw error;
      // Another took its place meanwhile.
      return this.read(id, entity, file);
    }
  }

  /** Repeated, it is answered like the first. */
  async delete(id: string, entity: string): Promise<void> {
    const { repository, blobs, log } = this.#options;
    const needless = await repository.remove(id, entity);
    if (needless === null) throw notFound('artifact');
    await removeUnnamed(blobs, needless, log);
  }

  /** The training rows of a version; null where there is no such artifact, or it belongs to others, or has no such file. */
  async openData(
    entity: string,
    project: string,
    name: string,
    version: number | null,
  ): Promise<AsyncIterable<Uint8Array> | null> {
    const artifact = await this.#options.repository.findVersion(entity, project, name, version);
    const file = artifact?.files.find((candidate) => DATA_FILES.includes(candidate.name));
    return file === undefined ? null : readLater(this.#options.blobs.path(file.blobKey, CONTENT), file);
  }

  /** Those that were not committed in their time. */
  async removeAbandoned(): Promise<void> {
    const { repository, blobs, log } = this.#options;
    const before = new Date(Date.now() - OPEN_MS).toISOString();
    for (const { id, entity } of await repository.abandoned(before)) {
      await removeUnnamed(blobs, (await repository.remove(id, entity)) ?? [], log);
    }
  }

  async #require(id: string, entity: string): Promise<StoredArtifact> {
    const artifact = await this.#options.repository.findOwned(id, entity);
    if (artifact === null || artifact.state === 'deleted') throw notFound('artifact');
    return artifact;
  }

  async #checkMetadata(artifact: StoredArtifact): Promise<void> {
    const file = artifact.files.find(({ name }) => name === METADATA_FILE);
    if (file === undefined) return;
    try {
      const value: unknown = JSON.parse(await readFile(this.#options.blobs.path(file.blobKey, CONTENT), 'utf8'));
      if (isPlainObject(value)) return;
    } catch (error) {
      // Another took its place meanwhile: the commit finds that out.
      if ((error as { code?: unknown }).code === 'ENOENT') return;
      if (!(error instanceof SyntaxError)) throw error;
    }
    throw invalid(['path', METADATA_FILE], `${METADATA_FILE} is no JSON object.`);
  }
}

function conflict(state: string): ServiceError {
  return new ServiceError('conflict', `The artifact is ${state}: its files do not change any more.`);
}

function toView(artifact: StoredArtifact): ArtifactView {
  const { id, entity, project, name, type, state, version, metadata, createdAt } = artifact;
  return {
    id,
    entity,
    project,
    name,
    type,
    state,
    version: version === null ? null : `v${version}`,
    url: version === null ? null : formatArtifactUrl(entity, project, name, version),
    metadata,
    createdAt,
    files: artifact.files.map((file) => ({ name: file.name, bytes: file.bytes, sha256: file.sha256 })),
  };
}

/** Opens the file when it is first read: the reader may be refused before. */
async function* readLater(path: string, written: StoredFile): AsyncGenerator<Uint8Array> {
  yield* (await openStored(path, written)).content as AsyncIterable<Uint8Array>;
}
