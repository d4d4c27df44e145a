/** Nobody takes for whole what of a stored file is missing, cut, longer or another bit. */
import { createHash } from 'node:crypto';
import { mkdtempSync, readdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { openStored } from '../../../src/control/training/stored-file.ts';

const SMALL = Buffer.from('{"messages": []}\n');
/** More than is read at once, and not a multiple of it. */
const LARGE = Buffer.alloc(3 * 2 ** 20 + 5, 'large ');

let path: string;
let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'tandem-stored-'));
  path = join(directory, 'content');
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

function written(bytes: Buffer): { bytes: number; sha256: string } {
  return { bytes: bytes.length, sha256: createHash('sha256').update(bytes).digest('hex') };
}

/** Another bit at the place, from the end where negative. */
function flipped(bytes: Buffer, at: number): Buffer {
  const copy = Buffer.from(bytes);
  const index = at < 0 ? copy.length + at : at;
  copy[index] = (copy[index] ?? 0) ^ 1;
  return copy;
}

const openHere = (): number =>
  readdirSync('/proc/self/fd').filter((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`).startsWith(directory);
    } catch {
      return false; // Closed by now.
    }
  }).length;

test.each([Buffer.alloc(0), SMALL, LARGE])('what is as it was written is handed out whole (%#)', async (bytes) => {
  writeFileSync(path, bytes);
  const stored = await openStored(path, written(bytes));
  expect([stored.bytes, (await buffer(stored.content)).equals(bytes)]).toEqual([bytes.length, true]);
});

test.each<[string, Buffer, Buffer]>([
  ['another bit', SMALL, flipped(SMALL, 0)],
  ['cut', SMALL, SMALL.subarray(0, -1)],
  ['empty', SMALL, Buffer.alloc(0)],
  ['longer', SMALL, Buffer.concat([SMALL, SMALL])],
  ['longer than nothing', Buffer.alloc(0), SMALL],
])('a small file that is %s is refused, and closed', async (_, bytes, found) => {
  writeFileSync(path, found);
  const cause = { message: expect.stringContaining(path) as string };
  await expect(openStored(path, written(bytes))).rejects.toMatchObject({ code: 'file_lost', cause });
  await expect.poll(openHere).toBe(0);
});

test.each<[string, Buffer]>([
  ['another bit at its begin', flipped(LARGE, 0)],
  ['another bit at its end', flipped(LARGE, -1)],
  ['cut', LARGE.subarray(0, -1)],
  ['longer', Buffer.concat([LARGE, SMALL])],
])('of a large file that has %s the last piece is not handed out', async (_, found) => {
  writeFileSync(path, found);
  const { content } = await openStored(path, written(LARGE));
  let got = 0;
  const reading = (async () => {
    for await (const piece of content) got += (piece as Buffer).length;
  })();
  await expect(reading).rejects.toMatchObject({ code: 'file_lost' });
  expect(got).toBeLessThan(LARGE.length);
  await expect.poll(openHere).toBe(0);
});

test('a file that nobody reads to its end is closed', async () => {
  writeFileSync(path, LARGE);
  const { content } = await openStored(path, written(LARGE));
  expect(openHere()).toBe(1);
  content.destroy();
  await expect.poll(openHere).toBe(0);
});
