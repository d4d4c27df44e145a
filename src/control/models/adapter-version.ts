/** Names an adapter by its content: the same files have the same version, others never. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { ADAPTER_WEIGHTS_FILE } from './adapter-files.ts';
import { ModelError } from './errors.ts';
import { resolveModelFile } from './json-file.ts';
import { ADAPTER_CONFIG_FILE } from './peft-config.ts';

const PREFIX = 'peft-sha256:';
/** Hashing leaves the event loop between pieces of this size. */
const PIECE_BYTES = 1024 * 1024;

/** Reads both files whole. */
export async function adapterVersion(directory: string): Promise<string> {
  const hash = createHash('sha256');
  for (const name of [ADAPTER_CONFIG_FILE, ADAPTER_WEIGHTS_FILE]) {
    const file = await resolveModelFile(directory, name);
    if (!file) throw new ModelError(name, 'is missing.');
    // The length first, so that no two folders give the same stream.
    hash.update(`${name}:${file.size}:`);
    for await (const piece of createReadStream(file.path, { highWaterMark: PIECE_BYTES })) hash.update(piece as Buffer);
  }
  return PREFIX + hash.digest('hex');
}

/** Whether the folder still holds what a version of this form names; versions of other forms are not checked here. */
export async function holdsVersion(directory: string, version: string): Promise<boolean> {
  return !version.startsWith(PREFIX) || (await adapterVersion(directory)) === version;
}
