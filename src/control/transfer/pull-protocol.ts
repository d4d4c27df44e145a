/**
 * The messages of a pull, in order: PullRequest; PullAnswer; for each chunk a ChunkHeader and the pages' bytes; PullEnd, after
 * which the holder lets the blocks go.
 */
import { createHash } from 'node:crypto';
import type { CacheScope } from '../scheduler/block-hash.ts';
import type { EngineIdentity } from './transfer.ts';

export interface PullRequest {
  identity: EngineIdentity;
  engineId: string;
  /** All blocks of the handle. */
  blockIds: number[];
  /** Digest of tenant, adapter version and salt: blocks are given to their own alone. */
  scope: string;
  /** Digest of the tokens of all these blocks. */
  tokens: string;
  /** The first so many are not wanted: they are there already. */
  skip: number;
  /** How many are wanted after these; the rest is of no use to the asking one. */
  count: number;
}

/** `tokens`: digest of the tokens of all held blocks. */
export type PullAnswer = { identity: EngineIdentity; tokens: string; blocks: number } | { error: string };

export interface ChunkHeader {
  blocks: number;
  /** SHA-256 of their bytes. */
  digest: string;
}

export interface PullEnd {
  received: true;
}

export function digestOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

export function scopeDigest({ tenant, adapterVersion, cacheSalt }: CacheScope): string {
  return digestOf(Buffer.from(JSON.stringify([tenant, adapterVersion, cacheSalt])));
}

export function tokensDigest(ids: Int32Array): string {
  return digestOf(new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength));
}

/** The field in which two identities differ, or null. */
export function difference(ours: EngineIdentity, theirs: unknown): string | null {
  if (typeof theirs !== 'object' || theirs === null) return 'identity';
  const fields = Object.keys(ours) as (keyof EngineIdentity)[];
  return fields.find((field) => (theirs as Partial<EngineIdentity>)[field] !== ours[field]) ?? null;
}

/** Checks what came over the wire; null: it is no such request. */
export function readPullRequest(value: Record<string, unknown>): PullRequest | null {
  const { engineId, blockIds, scope, tokens, skip, count } = value;
  const texts = [engineId, scope, tokens].every((text) => typeof text === 'string');
  const numbers = [skip, count].every(isCount);
  if (!texts || !numbers || !Array.isArray(blockIds) || !blockIds.every(isCount)) return null;
  if ((skip as number) + (count as number) > blockIds.length) return null;
  return value as unknown as PullRequest;
}

function isCount(value: unknown): boolean {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) < 2 ** 31;
}
