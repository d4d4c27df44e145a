import { hash, randomBytes } from 'node:crypto';
import { PAGE_SIZE } from '../engine/native.ts';

/** What separates caches beside the tokens: sequences that differ in any of these share nothing. */
export interface CacheScope {
  tenant: string;
  /** Of the adapter's content, never its name alone; '' = the base model. */
  adapterVersion: string;
  cacheSalt: string | null;
}

/** Bytes of SHA-256. */
const DIGEST_BYTES = 32;
const TOKEN_BYTES = 4 * PAGE_SIZE;

/**
 * Names the content of KV pages. A block's key is the SHA-256 of its parent's key and its token ids; the first block's parent
 * is the hash of the scope and of a secret of this process. A client can therefore neither find two contents with one key nor
 * tell from outside whether a key exists.
 */
export class BlockHasher {
  readonly #seed = randomBytes(DIGEST_BYTES);
  readonly #input = Buffer.alloc(DIGEST_BYTES + TOKEN_BYTES);

  /** The parent of a sequence's first block. */
  root({ tenant, adapterVersion, cacheSalt }: CacheScope): string {
    // As JSON, so that no two scopes give the same bytes.
    const scope = Buffer.from(JSON.stringify([tenant, adapterVersion, cacheSalt]));
    return digest(Buffer.concat([this.#seed, scope]));
  }

  /** `tokens`: one full block. */
  next(parent: string, tokens: Int32Array): string {
    this.#input.write(parent, 0, 'latin1');
    this.#input.set(new Uint8Array(tokens.buffer, tokens.byteOffset, TOKEN_BYTES), DIGEST_BYTES);
    return digest(this.#input);
  }
}

/** One character per byte: the shortest string that a Map takes as key. */
function digest(bytes: Buffer): string {
  return hash('sha256', bytes, 'binary');
}
