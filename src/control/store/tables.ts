/** Rows as they lie in the database. They never leave the repositories. */
export interface EntitiesTable {
  /** Team or user name. */
  name: string;
  created_at: string;
}

export interface ApiKeysTable {
  id: string;
  entity: string;
  /** For people: what the key is for. */
  name: string;
  /** SHA-256 of the key, 64 hex digits. The key itself is stored nowhere. */
  hash: string;
  created_at: string;
  revoked_at: string | null;
}

export interface Tables {
  entities: EntitiesTable;
  api_keys: ApiKeysTable;
}
