import { existsSync, mkdirSync, readdirSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import type { EngineConfig } from '../../../src/control/engine/protocol.ts';
import { afterLoad, cachePlace } from '../../../src/control/engine/weight-cache.ts';
import { temporaryDirectory } from '../../fixtures/tiny-model.ts';

const temporary = temporaryDirectory();
afterAll(() => temporary.remove());
let folders = 0;

/** A model of 1,000 weights in one file. */
function config(maxBytes: number, changes: object = {}): EngineConfig {
  const root = join(temporary.path, String(folders++));
  mkdirSync(root);
  writeFileSync(join(root, 'weights'), 'weights');
  const weightCache = { directory: join(root, 'cache'), maxBytes, modelDigest: 'digest' };
  const tensors = [{ name: 'a', shape: [10, 100] }];
  return {
    files: [join(root, 'weights')],
    tensors,
    quantize: 'int8',
    weightCache,
    ...changes,
  } as unknown as EngineConfig;
}

test('a place names the model, the format and the instruction set', async () => {
  const one = config(1e6);
  const place = (await cachePlace(one, 'avx2'))!;
  expect(place.path).toBe(join(one.weightCache!.directory, `${place.key}.weights`));
  expect(await cachePlace(one, 'avx2')).toEqual(place);
  const keys = [
    place.key,
    (await cachePlace(one, 'avx512'))!.key,
    (await cachePlace({ ...one, quantize: 'int4' }, 'avx2'))!.key,
    (await cachePlace({ ...one, weightCache: { ...one.weightCache!, modelDigest: 'other' } }, 'avx2'))!.key,
  ];
  utimesSync(one.files[0]!, 1, 1);
  keys.push((await cachePlace(one, 'avx2'))!.key);
  expect(new Set(keys).size).toBe(keys.length);
});

test('nothing is kept without a format, without room, or where one file would not fit', async () => {
  expect(await cachePlace({ ...config(1e6), quantize: undefined } as unknown as EngineConfig, 'avx2')).toBeUndefined();
  expect(await cachePlace(config(0), 'avx2')).toBeUndefined();
  expect(await cachePlace(config(1000), 'avx2')).toBeUndefined();
});

test('what was used longest ago makes room, and half-written files go', async () => {
  const one = config(3000);
  const { directory } = one.weightCache!;
  mkdirSync(directory);
  const write = (name: string, time: number) => {
    writeFileSync(join(directory, name), Buffer.alloc(900));
    utimesSync(join(directory, name), time, time);
  };
  write('old.weights', 100);
  write('older.weights', 50);
  write('new.weights', 200);
  write('x.weights.partial', 300);
  write('something else', 1);
  await cachePlace(one, 'avx2');
  expect(readdirSync(directory).sort()).toEqual(['new.weights', 'old.weights', 'something else']);
});

test('what is to be read makes no room for itself', async () => {
  const one = config(2500);
  const place = await cachePlace(one, 'avx2');
  const other = join(one.weightCache!.directory, 'other.weights');
  for (const [path, time] of [
    [place!.path, 50],
    [other, 100],
  ] as const) {
    writeFileSync(path, Buffer.alloc(1500));
    utimesSync(path, time, time);
  }
  expect(await cachePlace(one, 'avx2')).toEqual(place);
  expect(existsSync(place!.path)).toBe(true);
  expect(existsSync(other)).toBe(false);
});

test('a failed write is told, a folder that cannot be made is an error', async () => {
  const lines: string[] = [];
  const place = { path: '/nowhere/a.weights', key: 'a' };
  for (const outcome of ['read', 'written', 'no space left'])
    await afterLoad(place, outcome, (line) => lines.push(line));
  expect(lines).toEqual(['The quantised weights are not kept in /nowhere/a.weights: no space left.']);
  const one = config(1e6);
  writeFileSync(one.weightCache!.directory, 'a file');
  await expect(cachePlace(one, 'avx2')).rejects.toThrow('EEXIST');
});
