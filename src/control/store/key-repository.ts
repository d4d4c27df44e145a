/** SQL of entities and API keys. */
import { sql, type Kysely } from 'kysely';
import type { Tables } from './tables.ts';

export interface StoredKey {
  id: string;
  entity: string;
  name: string;
  /** 64 hex digits. */
  hash: string;
  createdAt: string;
  revokedAt: string | null;
}

export class KeyRepository {
  readonly #db: Kysely<Tables>;

  constructor(db: Kysely<Tables>) {
    this.#db = db;
  }

  async insert(key: StoredKey): Promise<void> {
    await this.#db.transaction().execute(async (trx) => {
      await trx
        .insertInto('entities')
        .values({ name: key.entity, created_at: key.createdAt })
        .onConflict((conflict) => conflict.doNothing())
        .execute();
      await trx
        .insertInto('api_keys')
        .values({
          id: key.id,
          entity: key.entity,
          name: key.name,
          hash: key.hash,
          created_at: key.createdAt,
          revoked_at: key.revokedAt,
        })
        .execute();
    });
  }

  /** In the order in which they were made. */
  async all(): Promise<StoredKey[]> {
    const rows = await this.#db
      .selectFrom('api_keys')
      .selectAll()
      .orderBy(sql`rowid`)
      .execute();
    return rows.map((row) => ({
      id: row.id,
      entity: row.entity,
      name: row.name,
      hash: row.hash,
      createdAt: row.created_at,
      revokedAt: row.revoked_at,
    }));
  }

  /** False when there is no such key, or it was revoked before. */
  async revoke(id: string, at: string): Promise<boolean> {
    const result = await this.#db
      .updateTable('api_keys')
      .set({ revoked_at: at })
      .where('id', '=', id)
      .where('revoked_at', 'is', null)
      .executeTakeFirst();
    return result.numUpdatedRows > 0n;
  }
}
