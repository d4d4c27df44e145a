/** How the intake threads store what they have checked, and how that is read again: lines of JSON, compressed. */
import { createReadStream } from 'node:fs';
import { promisify } from 'node:util';
import { createGunzip, gzip } from 'node:zlib';
import { linesOf } from '../lines.ts';
import { parseWithTools } from '../tool-numbers.ts';
import type { TrajectoryGroup } from '../trajectories.ts';

/** Fast: the texts repeat so much that a higher level gains little. */
const LEVEL = 1;

const deflate = promisify(gzip);

/** Pieces of a text that were compressed each by itself are, one behind the other, the text compressed. */
export function compressed(text: string): Promise<Buffer> {
  return deflate(text, { level: LEVEL });
}

/**
 * Opens the file when it is first read; whoever stops in the middle leaves none open, whose room on the disk would outlive it. What is not what
 * was written ends with an error, at the latest behind its last byte.
 */
export async function* readContent(file: string): AsyncGenerator<Buffer> {
  const source = createReadStream(file);
  const gunzip = createGunzip();
  source.on('error', (error) => gunzip.destroy(error));
  gunzip.on('close', () => source.destroy());
  try {
    yield* source.pipe(gunzip) as AsyncIterable<Buffer>;
  } catch (error) {
    const { message, code } = error as { message: string; code?: unknown };
    // zlib names no file.
    throw Object.assign(new Error(`${file} cannot be read: ${message}`), { code });
  }
}

/** A large group takes a second to parse: not for a thread that serves. */
export async function* readGroups(file: string): AsyncGenerator<TrajectoryGroup> {
  for await (const line of linesOf(readContent(file))) yield parseWithTools(line.toString('utf8')) as TrajectoryGroup;
}
