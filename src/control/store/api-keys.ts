/** Making, storing and finding API keys. Only hashes are kept; a lookup runs no SQL. */
import { createHash, randomBytes, randomUUID, timingSafeEqual } from 'node:crypto';
import type { KeyRepository, StoredKey } from './key-repository.ts';

export const DEFAULT_ENTITY = 'default';
const KEY_PREFIX = 'tk-';
const KEY_BYTES = 32;

export interface KeyOwner {
  keyId: string;
  entity: string;
}

interface KnownKey extends KeyOwner {
  hash: Buffer;
}

/** The key in clear is in the result only: show it once. */
export async function createKey(
  repository: KeyRepository,
  name: string,
  entity: string,
): Promise<{ id: string; secret: string }> {
  const secret = KEY_PREFIX + randomBytes(KEY_BYTES).toString('base64url');
  const id = randomUUID();
  const hash = sha256(secret).toString('hex');
  await repository.insert({ id, entity, name, hash, createdAt: new Date().toISOString(), revokedAt: null });
  return { id, secret };
}

/** The valid keys in memory. `fixed` is one given on the command line; it is never stored. */
export class KeyCache {
  readonly #repository: KeyRepository;
  readonly #fixed: KnownKey[];
  #stored: KnownKey[] = [];

  constructor(repository: KeyRepository, fixed: string | null) {
    this.#repository = repository;
    this.#fixed = fixed === null ? [] : [{ keyId: 'command-line', entity: DEFAULT_ENTITY, hash: sha256(fixed) }];
  }

  /** Reads the table again. */
  async refresh(): Promise<void> {
    const keys = await this.#repository.all();
    this.#stored = keys.filter((key) => key.revokedAt === null).map(known);
  }

  get size(): number {
    return this.#fixed.length + this.#stored.length;
  }

  /** Every key is compared, whichever matches: the time tells nothing about where, or how far, a guess agreed. */
  find(token: string): KeyOwner | null {
    const hash = sha256(token);
    let found: KnownKey | null = null;
    for (const key of [...this.#fixed, ...this.#stored]) {
      if (timingSafeEqual(key.hash, hash)) found = key;
    }
    return found === null ? null : { keyId: found.keyId, entity: found.entity };
  }
}

function known(key: StoredKey): KnownKey {
  return { keyId: key.id, entity: key.entity, hash: Buffer.from(key.hash, 'hex') };
}

function sha256(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}
