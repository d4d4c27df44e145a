/** Names an adapter by its content: the same files have the same version, others never. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { ADAPTER_WEIGHTS_FILE } from './adapter-files.ts';
import { MissingFileError } from './errors.ts';
import { resolveModelFile } from './json-file.ts';
import { ADAPTER_CONFIG_FILE } from './peft-config.ts';

const PREFIX = 'peft-sha256:';
/** Of trained checkpoints: the digest of the same files, one behind the other, and perhaps a dot and more. */
const TRAINED = /^([0-9a-f]{64})(?:\.|$)/;
/** Hashing leaves the event loop between pieces of this size. */
const PIECE_BYTES = 1024 * 1024;

/** Reads both files whole. */
export async function adapterVersion(directory: string): Promise<string> {
  return PREFIX + (await digestFiles(directory, true));
}

/** Whether the folder still holds what a version of this form, or a trained checkpoint's, names; other forms are not checked here. */
export async function holdsVersion(directory: string, version: string): Promise<boolean> {
  if (version.startsWith(PREFIX)) return (await adapterVersion(directory)) === version;
  const trained = TRAINED.exec(version)?.[1];
  return trained === undefined || (await digestFiles(directory, false)) === trained;
}

async function digestFiles(directory: string, withSizes: boolean): Promise<string> {
  const hash = createHash('sha256');
  for (const name of [ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE]) {
    const file = await resolveModelFile(directory, name);
    if (!file) throw new MissingFileError(name);
    // The length first, so that no two folders give the same stream.
    if (withSizes) hash.update(`${name}:${file.size}:`);
    for await (const piece of createReadStream(file.path, { highWaterMark: PIECE_BYTES })) hash.update(piece as Buffer);
  }
  return hash.digest('hex');
}
