/** One SHA-256 that names the model: equal directories agree, and a changed weight nearly always shows. */
import { createHash, type Hash } from 'node:crypto';
import { open, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import type { FileSample } from '../engine/protocol.ts';
import { ModelError } from './errors.ts';
import { readModelText } from './json-file.ts';
import type { WeightFile } from './safetensors.ts';

/** Evenly spaced samples per weight file: enough to see another training step without reading gigabytes at start-up. */
const SAMPLES = 64;
const SAMPLE_BYTES = 4096;
const MAX_TEXT_BYTES = 64 * 1024 * 1024;

export async function digestModel(directory: string, textFiles: string[], weightFiles: WeightFile[]): Promise<string> {
  const hash = createHash('sha256');
  for (const name of textFiles) {
    const text = await readModelText(directory, name, MAX_TEXT_BYTES);
    addPart(hash, name, Buffer.from(text ?? ''));
  }
  for (const file of weightFiles) {
    addPart(hash, `${file.name}:${file.size}`, file.header);
    await addSamples(hash, file, 8 + file.header.length);
  }
  return hash.digest('hex');
}

/** Length first, so that no two lists of parts give the same stream. */
function addPart(hash: Hash, name: string, bytes: Uint8Array): void {
  hash.update(`${name.length}:${name}:${bytes.length}:`);
  hash.update(bytes);
}

async function addSamples(hash: Hash, file: { path: string; size: number }, start: number): Promise<void> {
  const span = Math.max(0, file.size - start - SAMPLE_BYTES);
  const buffer = Buffer.alloc(SAMPLE_BYTES);
  const handle = await open(file.path, 'r');
  try {
    for (let i = 0; i < SAMPLES; i++) {
      const { bytesRead } = await handle.read(buffer, 0, SAMPLE_BYTES, start + Math.floor((span * i) / (SAMPLES - 1)));
      hash.update(buffer.subarray(0, bytesRead));
    }
  } finally {
    await handle.close();
  }
}

/** One file after the other: there may be thousands, and few may be open. */
export async function sampleFiles(paths: readonly string[]): Promise<FileSample[]> {
  const samples: FileSample[] = [];
  for (const path of paths) samples.push({ path, digest: await sampleDigest(path) });
  return samples;
}

/** Throws ModelError naming the first file that is another one by now, or that cannot be read. */
export async function checkSamples(samples: readonly FileSample[]): Promise<void> {
  for (const { path, digest } of samples) {
    const now = await sampleDigest(path).catch((error: NodeJS.ErrnoException) => error);
    if (now === digest) continue;
    const problem =
      typeof now === 'string' ? 'is not the file that the server began with' : `cannot be read (${now.code})`;
    throw new ModelError(basename(path), `${problem}. Put that back, or start the server again.`);
  }
}

async function sampleDigest(path: string): Promise<string> {
  const { size } = await stat(path);
  const hash = createHash('sha256').update(String(size));
  await addSamples(hash, { path, size }, 0);
  return hash.digest('hex');
}
