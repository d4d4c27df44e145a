/** What the intake thread has stored, read again: lines of JSON, compressed. */
import { createReadStream } from 'node:fs';
import { createGunzip } from 'node:zlib';
import type { TrajectoryGroup } from '../trajectories.ts';

const LINE_FEED = 0x0a;

/** Opens the file when it is first read; whoever stops in the middle leaves none open, whose room on the disk would outlive it. */
export async function* readContent(file: string): AsyncGenerator<Buffer> {
  const source = createReadStream(file);
  const gunzip = createGunzip();
  source.on('error', (error) => gunzip.destroy(error));
  gunzip.on('close', () => source.destroy());
  yield* source.pipe(gunzip) as AsyncIterable<Buffer>;
}

/** A large group takes a second to parse: not for a thread that serves. */
export async function* readGroups(file: string): AsyncGenerator<TrajectoryGroup> {
  for await (const line of linesOf(readContent(file))) yield JSON.parse(line) as TrajectoryGroup;
}

async function* linesOf(source: AsyncIterable<Buffer>): AsyncGenerator<string> {
  let parts: Buffer[] = [];
  for await (const bytes of source) {
    let from = 0;
    for (let at = bytes.indexOf(LINE_FEED); at !== -1; at = bytes.indexOf(LINE_FEED, from)) {
      yield Buffer.concat([...parts, bytes.subarray(from, at)]).toString('utf8');
      parts = [];
      from = at + 1;
    }
    if (from < bytes.length) parts.push(bytes.subarray(from));
  }
}
