/** SQL of uploaded artifacts: open while files come, committed under a version that never changes. */
import { sql, type Kysely, type Selectable, type Transaction } from 'kysely';
import { transition, type StateOf } from '../lifecycle.ts';
import { readPage, type RowPage } from './row-page.ts';
import type { ArtifactsTable, Tables } from './tables.ts';

export interface StoredArtifactFile {
  name: string;
  blobKey: string;
  bytes: number;
  sha256: string;
}

export interface StoredArtifact {
  id: string;
  entity: string;
  project: string;
  name: string;
  type: string;
  state: StateOf<'artifact'>;
  /** null while open. */
  version: number | null;
  metadata: unknown;
  createdAt: string;
  /** By name. */
  files: StoredArtifactFile[];
}

/** In the words of the indices that answer them: a value that is bound later finds none. */
const IS_OPEN = sql<boolean>`state = 'open'`;
const IS_PRESENT = sql<boolean>`state != 'deleted'`;

export class ArtifactRepository {
  readonly #db: Kysely<Tables>;

  constructor(db: Kysely<Tables>) {
    this.#db = db;
  }

  /** False where the entity has `maxOpen` open ones already. */
  async insert(artifact: Omit<StoredArtifact, 'files' | 'state' | 'version'>, maxOpen: number): Promise<boolean> {
    return this.#db.transaction().execute(async (trx) => {
      if ((await countOpen(trx, artifact.entity)) >= maxOpen) return false;
      await trx
        .insertInto('artifacts')
        .values({
          id: artifact.id,
          entity: artifact.entity,
          project: artifact.project,
          name: artifact.name,
          type: artifact.type,
          state: 'open' satisfies StateOf<'artifact'>,
          version: null,
          digest: null,
          same_as: null,
          metadata: JSON.stringify(artifact.metadata),
          created_at: artifact.createdAt,
        })
        .execute();
      return true;
    });
  }

  /** Another entity's artifact is found like one that never was: not. */
  async findOwned(id: string, entity: string): Promise<StoredArtifact | null> {
    const row = await this.#db
      .selectFrom('artifacts')
      .selectAll()
      .where('id', '=', id)
      .where('entity', '=', entity)
      .executeTakeFirst();
    return row === undefined ? null : this.#withFiles(row);
  }

  /** The version, or the newest one. */
  async findVersion(
    entity: string,
    project: string,
    name: string,
    version: number | null,
  ): Promise<StoredArtifact | null> {
    let query = this.#db
      .selectFrom('artifacts')
      .selectAll()
      .where('entity', '=', entity)
      .where('project', '=', project)
      .where('name', '=', name)
      .where('state', '=', 'committed');
    if (version !== null) query = query.where('version', '=', version);
    const row = await query.orderBy('version', 'desc').limit(1).executeTakeFirst();
    return row === undefined ? null : this.#withFiles(row);
  }

  /** Artifacts of an entity behind `after` (an id), oldest first; null where there is no such id. */
  async page(entity: string, after: string | null, limit: number): Promise<RowPage<StoredArtifact> | null> {
    let from = 0;
    if (after !== null) {
      const row = await this.#db
        .selectFrom('artifacts')
        .select('sequence')
        .where('id', '=', after)
        .where('entity', '=', entity)
        .executeTakeFirst();
      if (row === undefined) return null;
      from = row.sequence;
    }
    const ordered = this.#db
      .selectFrom('artifacts')
      .where('entity', '=', entity)
      .where(IS_PRESENT)
      .where('sequence', '>', from)
      .orderBy('sequence');
    const size = sql<number>`octet_length(metadata)`.as('bytes');
    const sizesOf = (most: number) => ordered.select(size).limit(most).execute();
    return readPage(limit, sizesOf, async (most) => {
      const rows = await ordered.selectAll().limit(most).execute();
      return await Promise.all(rows.map((row) => this.#withFiles(row)));
    });
  }

  /** Open artifacts that were begun before. */
  async abandoned(before: string): Promise<StoredArtifact[]> {
    const rows = await this.#db
      .selectFrom('artifacts')
      .selectAll()
      .where(IS_OPEN)
      .where('created_at', '<', before)
      .execute();
    return Promise.all(rows.map((row) => this.#withFiles(row)));
  }

  /** Adds or replaces a file of an open artifact; returns the replaced file's blob. Throws TransitionError where it is not open. */
  async putFile(id: string, file: StoredArtifactFile, maxFiles: number): Promise<string | null | 'full'> {
    return this.#db.transaction().execute(async (trx) => {
      const { state } = await requireRow(trx, id);
      transition('artifact', state, 'commit');
      const files = await trx.selectFrom('artifact_files').selectAll().where('artifact_id', '=', id).execute();
      const before = files.find(({ name }) => name === file.name);
      if (before === undefined && files.length >= maxFiles) return 'full';
      if (before !== undefined) {
        await trx.deleteFrom('artifact_files').where('artifact_id', '=', id).where('name', '=', file.name).execute();
      }
      const { name, bytes, sha256 } = file;
      await trx
        .insertInto('artifact_files')
        .values({ artifact_id: id, name, blob_key: file.blobKey, bytes, sha256 })
        .execute();
      return before?.blob_key ?? null;
    });
  }

  /** What committing this artifact gave: itself, or the version that had its content before. Null where it gave nothing. */
  async committed(id: string, entity: string): Promise<StoredArtifact | null> {
    const artifacts = this.#db.selectFrom('artifacts').selectAll().where('entity', '=', entity);
    const row = await artifacts.where('id', '=', id).executeTakeFirst();
    const gave = row?.same_as == null ? row : await artifacts.where('id', '=', row.same_as).executeTakeFirst();
    return gave?.state === 'committed' ? this.#withFiles(gave) : null;
  }

  /**
   * Gives the artifact the next version of its name. Where the newest version has the same content, that one is returned instead and the
   * open artifact is deleted; `blobs` are then no longer named by a row. Null where it no longer has the files that `digest` is of.
   */
  async commit({ id, files }: StoredArtifact, digest: string): Promise<{ id: string; blobs: string[] } | null> {
    return this.#db.transaction().execute(async (trx) => {
      const row = await requireRow(trx, id);
      const state = transition('artifact', row.state, 'commit');
      const present = await filesOf(trx, id);
      if (present.map(({ blobKey }) => blobKey).join() !== files.map(({ blobKey }) => blobKey).join()) return null;
      const newest = await trx
        .selectFrom('artifacts')
        .selectAll()
        .where('entity', '=', row.entity)
        .where('project', '=', row.project)
        .where('name', '=', row.name)
        .where('version', 'is not', null)
        .orderBy('version', 'desc')
        .limit(1)
        .executeTakeFirst();
      if (newest?.digest === digest && newest.state === 'committed') {
        return { id: newest.id, blobs: await bury(trx, row, newest.id) };
      }
      const version = newest?.version == null ? 0 : newest.version + 1;
      await trx.updateTable('artifacts').set({ state, version, digest }).where('id', '=', id).execute();
      return { id, blobs: [] };
    });
  }

  /**
   * Returns the blobs of its files; null where there never was one. Its row stays without files: a version is not given again, and a repeated
   * delete is answered like the first.
   */
  async remove(id: string, entity: string): Promise<string[] | null> {
    return this.#db.transaction().execute(async (trx) => {
      const row = await trx
        .selectFrom('artifacts')
        .selectAll()
        .where('id', '=', id)
        .where('entity', '=', entity)
        .executeTakeFirst();
      return row === undefined ? null : bury(trx, row);
    });
  }

  /** Rows that only answer repeated requests. */
  async forgetDeleted(before: string): Promise<void> {
    await this.#db
      .deleteFrom('artifacts')
      .where('state', '=', 'deleted')
      .where('version', 'is', null)
      .where('created_at', '<', before)
      .execute();
  }

  async #withFiles(row: Selectable<ArtifactsTable>): Promise<StoredArtifact> {
    return {
      id: row.id,
      entity: row.entity,
      project: row.project,
      name: row.name,
      type: row.type,
      state: row.state as StateOf<'artifact'>,
      version: row.version,
      metadata: JSON.parse(row.metadata) as unknown,
      createdAt: row.created_at,
      files: await filesOf(this.#db, row.id),
    };
  }
}

/** By name. */
async function filesOf(db: Kysely<Tables>, artifactId: string): Promise<StoredArtifactFile[]> {
  const rows = await db
    .selectFrom('artifact_files')
    .selectAll()
    .where('artifact_id', '=', artifactId)
    .orderBy('name')
    .execute();
  return rows.map(({ name, blob_key: blobKey, bytes, sha256 }) => ({ name, blobKey, bytes, sha256 }));
}

async function countOpen(trx: Transaction<Tables>, entity: string): Promise<number> {
  const { count } = await trx
    .selectFrom('artifacts')
    .select(({ fn }) => fn.countAll<number>().as('count'))
    .where('entity', '=', entity)
    .where(IS_OPEN)
    .executeTakeFirstOrThrow();
  return count;
}

/** Returns the blobs of the artifact's files. `sameAs`: the version that it gives way to. */
async function bury(
  trx: Transaction<Tables>,
  row: Selectable<ArtifactsTable>,
  sameAs = row.same_as,
): Promise<string[]> {
  const state = transition('artifact', row.state, 'delete');
  const files = await trx
    .deleteFrom('artifact_files')
    .where('artifact_id', '=', row.id)
    .returning('blob_key')
    .execute();
  await trx.updateTable('artifacts').set({ state, same_as: sameAs, metadata: '{}' }).where('id', '=', row.id).execute();
  return files.map((file) => file.blob_key);
}

async function requireRow(trx: Transaction<Tables>, id: string): Promise<Selectable<ArtifactsTable>> {
  return trx.selectFrom('artifacts').selectAll().where('id', '=', id).executeTakeFirstOrThrow();
}
