/** Reading what training wrote. */
import { createHash } from 'node:crypto';
import {
  appendFileSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { encodeTensors, readTensors, type TensorFile } from '../../../src/control/training/tensor-file.ts';

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'tandem-tensors-'));
  path = join(folder, 'file');
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const tensor = (name: string, shape: number[]) => {
  const count = shape.reduce((product, size) => product * size, 1);
  return { name, shape, values: Float32Array.from({ length: count }, (_, at) => at / 7 + name.length) };
};
const FILE: TensorFile = {
  tensors: [tensor('b', [3, 5]), tensor('none', [0]), tensor('a', [40]), tensor('é', [2, 2, 2])],
  metadata: { step: '3', note: 'ü' },
};

const write = (file: TensorFile) => writeFileSync(path, Buffer.concat([...encodeTensors(file)]));

test.each([1, 7, 31, 32, 33, 2 ** 30])('a file is read as it was written, %s bytes at once', async (readBytes) => {
  write(FILE);
  const digest = createHash('sha256');
  expect(await readTensors(path, { digest, readBytes })).toEqual(FILE);
  expect(digest.digest('hex')).toBe(createHash('sha256').update(readFileSync(path)).digest('hex'));
});

test('a large tensor is read, and its digest made, in pieces', async () => {
  write({ tensors: [tensor('large', [600_000])], metadata: {} });
  const digest = createHash('sha256');
  const update = vi.spyOn(digest, 'update');
  await readTensors(path, { digest });
  expect(Math.max(...update.mock.calls.map(([piece]) => Buffer.from(piece).length))).toBe(2 ** 20);
  expect(digest.digest('hex')).toBe(createHash('sha256').update(readFileSync(path)).digest('hex'));
});

test('each tensor has memory of its own: all of them together may be more than a Buffer holds', async () => {
  write(FILE);
  const { tensors } = await readTensors(path);
  expect(tensors.map(({ values }) => values.buffer.byteLength)).toEqual([60, 0, 160, 32]);
});

test('a missing file is told as such', async () => {
  await expect(readTensors(join(folder, 'missing'))).rejects.toMatchObject({ code: 'ENOENT' });
});

test('a file that was cut, or goes on, or whose tensors lie elsewhere is refused', async () => {
  write(FILE);
  appendFileSync(path, '\0');
  await expect(readTensors(path)).rejects.toThrow('longer than its tensors');
  truncateSync(path, readFileSync(path).length - 5);
  await expect(readTensors(path)).rejects.toThrow('Tensor é of the file is not whole.');
  truncateSync(path, 40);
  await expect(readTensors(path)).rejects.toThrow('cut off');
  truncateSync(path, 0);
  await expect(readTensors(path)).rejects.toThrow('cut off');
  // A header of 2 ** 63 bytes.
  writeFileSync(path, Buffer.from('0000000000000080', 'hex'));
  await expect(readTensors(path)).rejects.toThrow('cut off');
  for (const offsets of [
    [0, 8],
    [4, 8],
    [-4, 0],
    [1, 5],
  ]) {
    const header = Buffer.from(JSON.stringify({ a: { dtype: 'F32', shape: [1], data_offsets: offsets } }));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(header.length));
    writeFileSync(path, Buffer.concat([length, header, Buffer.alloc(8)]));
    await expect(readTensors(path)).rejects.toThrow('Tensor a of the file is not whole.');
  }
  expect(readdirSync('/proc/self/fd').map(fileOf)).not.toContain(path);
});

/** Empty for a descriptor that is closed by now. */
function fileOf(fd: string): string {
  try {
    return readlinkSync(`/proc/self/fd/${fd}`);
  } catch {
    return '';
  }
}
