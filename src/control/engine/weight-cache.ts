/**
 * Where quantised weights are kept between starts: a folder of files that native code writes and checks (native/src/model/weight_cache.h).
 * A file's name is its key, so another model, format or kernel set finds nothing; the folder holds at most so many bytes.
 */
import { createHash } from 'node:crypto';
import { mkdir, readdir, rm, stat, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import type { EngineConfig } from './protocol.ts';

/** Raised whenever other bytes are made of the same weights. */
const VERSION = 1;
const SUFFIX = '.weights';
const PARTIAL = '.partial';

export interface WeightCacheSettings {
  directory: string;
  /** 0 = nothing is kept. */
  maxBytes: number;
  /** LoadedModel.digest: it samples the weights, so sizes and times of the files count besides. */
  modelDigest: string;
}

export interface CachePlace {
  path: string;
  key: string;
}

/** Makes room for the file of this model, or returns undefined where nothing is to be kept or it would not fit. */
export async function cachePlace(config: EngineConfig, isa: string): Promise<CachePlace | undefined> {
  const { quantize, weightCache, files, tensors } = config;
  if (!quantize || !weightCache || weightCache.maxBytes === 0) return undefined;
  const stats = await Promise.all(files.map((file) => stat(file, { bigint: true })));
  const times = stats.map(({ size, mtimeNs, ctimeNs, ino }) => `${size}/${mtimeNs}/${ctimeNs}/${ino}`);
  const facts = [VERSION, weightCache.modelDigest, quantize, isa, ...times];
  const key = createHash('sha256').update(JSON.stringify(facts)).digest('hex');
  const path = join(weightCache.directory, `${key}${SUFFIX}`);
  const weights = tensors.reduce((sum, { shape }) => sum + shape.reduce((product, size) => product * size, 1), 0);
  const needed = weights * (quantize === 'int8' ? 1.1 : 0.6);
  if (needed > weightCache.maxBytes) return undefined;
  await mkdir(weightCache.directory, { recursive: true, mode: 0o700 });
  await makeRoom(weightCache, path, needed);
  return { path, key };
}

/** Removes what other processes left half-written, and what was used longest ago until the rest and `needed` fit. */
async function makeRoom({ directory, maxBytes }: WeightCacheSettings, keep: string, needed: number): Promise<void> {
  const entries = await Promise.all(
    (await readdir(directory)).map(async (name) => {
      const path = join(directory, name);
      const { size, mtimeMs } = await stat(path).catch(() => ({ size: 0, mtimeMs: 0 }));
      return { path, size, mtimeMs };
    }),
  );
  const partial = entries.filter(({ path }) => path.endsWith(PARTIAL));
  for (const { path } of partial) await rm(path, { force: true });
  const others = entries.filter(({ path }) => path.endsWith(SUFFIX) && path !== keep);
  let total = others.reduce((sum, { size }) => sum + size, needed);
  for (const { path, size } of others.sort((a, b) => a.mtimeMs - b.mtimeMs)) {
    if (total <= maxBytes) return;
    await rm(path, { force: true });
    total -= size;
  }
}

/** The file counts as used now; what went wrong when it was written is told. */
export async function afterLoad(place: CachePlace, outcome: string, log: (line: string) => void): Promise<void> {
  if (outcome === 'read') return utimes(place.path, new Date(), new Date()).catch(() => undefined);
  if (outcome !== 'written') log(`The quantised weights are not kept in ${place.path}: ${outcome}.`);
}
