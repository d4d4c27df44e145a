/** The keys of a server: those of the data directory, one of the command line, and on the first start a new one. */
import { createKey, DEFAULT_ENTITY, KeyCache } from '../control/store/api-keys.ts';
import type { Database } from '../control/store/database.ts';
import { KeyRepository } from '../control/store/key-repository.ts';
import type { KeyNote } from './banner.ts';

const POLL_MS = 500;

export class ServerKeys {
  readonly cache: KeyCache;
  readonly #repository: KeyRepository;
  readonly #apiKey: string | null;
  readonly #timer: NodeJS.Timeout;

  private constructor(database: Database, apiKey: string | null) {
    this.#repository = new KeyRepository(database.db);
    this.#apiKey = apiKey;
    this.cache = new KeyCache(this.#repository, apiKey);
    this.#timer = followChanges(database, this.cache);
  }

  static async open(database: Database, apiKey: string | null): Promise<ServerKeys> {
    const keys = new ServerKeys(database, apiKey);
    await keys.cache.refresh();
    return keys;
  }

  /** Makes the first key where there never was one. Call when it can be shown: a key that no one saw is lost. */
  async note(): Promise<KeyNote> {
    if (this.#apiKey !== null) return { kind: 'flag' };
    if ((await this.#repository.all()).length > 0) return { kind: 'stored', count: this.cache.size };
    const { secret } = await createKey(this.#repository, 'first key', DEFAULT_ENTITY);
    await this.cache.refresh();
    return { kind: 'new', secret };
  }

  close(): void {
    clearInterval(this.#timer);
  }
}

/** Keys made or revoked by the keys command take effect without a restart. */
function followChanges(database: Database, cache: KeyCache): NodeJS.Timeout {
  let version: number | null = null;
  let looking = false;
  const look = async () => {
    const now = await database.dataVersion();
    if (now === version) return;
    await cache.refresh();
    // Not before: a look that fails (the database is locked, or closing) is repeated by the next one.
    version = now;
  };
  const timer = setInterval(() => {
    // One at a time: they would pile up behind a disk that is slow.
    if (looking) return;
    looking = true;
    void look()
      .catch(() => undefined)
      .finally(() => (looking = false));
  }, POLL_MS);
  return timer.unref();
}
