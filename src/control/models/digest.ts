/** One SHA-256 that names the model: equal directories agree, and a changed weight nearly always shows. */
import { createHash, type Hash } from 'node:crypto';
import { open } from 'node:fs/promises';
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
    await addSamples(hash, file);
  }
  return hash.digest('hex');
}

/** Length first, so that no two lists of parts give the same stream. */
function addPart(hash: Hash, name: string, bytes: Uint8Array): void {
  hash.update(`${name.length}:${name}:${bytes.length}:`);
  hash.update(bytes);
}

async function addSamples(hash: Hash, file: WeightFile): Promise<void> {
  const start = 8 + file.header.length;
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
