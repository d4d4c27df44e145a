/** GGUF files are hostile: whatever the bytes say, the answer is a refusal that names the key or the tensor, or the right facts. */
import { closeSync, openSync, truncateSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ModelError } from '../../../src/control/models/errors.ts';
import { STORAGE_TYPES, VALUE_TYPES } from '../../../src/control/models/gguf/format.ts';
import { readGgufHeader, type GgufHeader } from '../../../src/control/models/gguf/header.ts';
import {
  arrayEntry,
  entry,
  ggufFile,
  ggufHead,
  rawEntry,
  tensorInfo,
  text,
  u32,
  u64,
} from '../../fixtures/gguf-writer.ts';
import { temporaryDirectory } from './model-directory.ts';

const { array, bool, string, uint32 } = VALUE_TYPES;

function write(bytes: Uint8Array): string {
  const path = join(temporaryDirectory(), 'model.gguf');
  writeFileSync(path, bytes);
  return path;
}

function read(bytes: Buffer): GgufHeader {
  return readGgufHeader(write(bytes), 'model.gguf');
}

function refusal(bytes: Buffer): string {
  try {
    read(bytes);
  } catch (error) {
    if (error instanceof ModelError) return error.message;
    throw error;
  }
  return 'read';
}

const KEY = entry('general.architecture', 'string', 'llama');
const DATA = Buffer.alloc(128, 1);
const vector = (name: string) => ({ name, type: 'F32' as const, shape: [4], data: DATA.subarray(0, 16) });

/** One vector of 4 floats whose line in the table is replaced in part. */
function withInfo(
  info: Partial<{ dimensions: (number | bigint)[]; type: number; offset: number | bigint; count: number }>,
): Buffer {
  const line = tensorInfo('blk.0.w', { dimensions: [4], type: STORAGE_TYPES.F32.id, offset: 0, ...info });
  return Buffer.concat([ggufHead([KEY], [line]), DATA]);
}

/** The head of a file with other counts, and `rest` behind it. */
function counts(tensors: bigint, keys: bigint, rest: Uint8Array = DATA): Buffer {
  return Buffer.concat([Buffer.from('GGUF'), u32(3), u64(tensors), u64(keys), rest]);
}

describe('a GGUF header', () => {
  it('is read: every type of value, tensors with their place', () => {
    const header = read(
      ggufFile(
        [
          entry('a.u8', 'uint8', 255),
          entry('a.i8', 'int8', -128),
          entry('a.u16', 'uint16', 65_535),
          entry('a.i16', 'int16', -2),
          entry('a.u32', 'uint32', 2 ** 32 - 1),
          entry('a.i32', 'int32', -5),
          entry('a.f32', 'float32', 0.7),
          entry('a.f64', 'float64', 0.1),
          entry('a.u64', 'uint64', 2n ** 53n),
          entry('a.i64', 'int64', -7n),
          entry('a.bool', 'bool', true),
          entry('a.text', 'string', '\ufeffé\u0000'),
          arrayEntry('a.list', 'string', ['x', '']),
          arrayEntry('a.none', 'float32', []),
          entry('__proto__', 'uint32', 3),
        ],
        [vector('one'), { name: 'two', type: 'Q8_0', shape: [2, 32], data: Buffer.alloc(68) }],
      ),
    );
    expect({ ...header.metadata }).toEqual({
      'a.u8': 255,
      'a.i8': -128,
      'a.u16': 65_535,
      'a.i16': -2,
      'a.u32': 2 ** 32 - 1,
      'a.i32': -5,
      'a.f32': 0.7,
      'a.f64': 0.1,
      'a.u64': 2 ** 53,
      'a.i64': -7,
      'a.bool': true,
      'a.text': '\ufeffé\u0000',
      'a.list': ['x', ''],
      'a.none': [],
      ['__proto__']: 3,
    });
    expect(Object.getPrototypeOf(header.metadata)).toBeNull();
    expect(header.dataOffset % 32).toBe(0);
    expect(header.tensors.get('one')).toEqual({
      name: 'one',
      type: 'F32',
      shape: [4],
      offset: header.dataOffset,
      bytes: 16,
    });
    expect(header.tensors.get('two')).toMatchObject({ shape: [2, 32], offset: header.dataOffset + 32, bytes: 68 });
  });

  it.each([1, 64, 4096])('obeys the alignment %d', (alignment) => {
    const entries = [KEY, entry('general.alignment', 'uint32', alignment)];
    const header = read(ggufFile(entries, [vector('one'), vector('two')], alignment));
    expect(header.dataOffset % alignment).toBe(0);
    expect(header.tensors.get('two')!.offset % alignment).toBe(0);
  });

  it('reads values that lie across its windows', () => {
    const long = 'é'.repeat(700_000);
    const tokens = Array.from({ length: 200_000 }, (_, i) => `token ${i}`);
    const header = read(
      ggufFile([entry('long', 'string', long), arrayEntry('tokens', 'string', tokens)], [vector('one')]),
    );
    expect(header.metadata['long']).toBe(long);
    expect(header.metadata['tokens']).toEqual(tokens);
  });
});

/** [what, file, the text in the refusal] */
const hostile: [string, Buffer, string][] = [
  ['an empty file', Buffer.alloc(0), 'truncated'],
  ['another file', Buffer.from('PK\u0003\u0004 and more'), 'does not begin with GGUF'],
  ['version 1', Buffer.concat([Buffer.from('GGUF'), u32(1), DATA]), 'version 1'],
  ['version 4', Buffer.concat([Buffer.from('GGUF'), u32(4), DATA]), 'version 4'],
  ['big-endian', Buffer.concat([Buffer.from('GGUF'), u32(0x03000000), DATA]), 'big-endian'],
  ['2^63 tensors', counts(2n ** 63n, 0n), 'the number of tensors'],
  ['2^64 - 1 tensors', counts(2n ** 64n - 1n, 0n), 'the number of tensors'],
  ['more tensors than the file can hold', counts(1000n, 0n), 'the number of tensors'],
  ['2^63 keys', counts(0n, 2n ** 63n), 'the number of keys'],
  ['more keys than the file can hold', counts(0n, 1000n), 'the number of keys'],
  ['a key longer than the file', counts(0n, 1n, Buffer.concat([u64(60_000), DATA])), 'key 0'],
  ['a key of 2^63 bytes', counts(0n, 1n, Buffer.concat([u64(2n ** 63n), DATA])), 'key 0'],
  ['a key that is not UTF-8', ggufHead([rawEntry(Buffer.from([0xff, 0xfe]), uint32, u32(1))], []), 'key 0'],
  [
    'a key given twice',
    ggufHead([KEY, entry('general.architecture', 'string', 'qwen3')], []),
    '"general.architecture" is given twice',
  ],
  ['an unknown value type', ggufHead([rawEntry('a.key', 13, u32(1))], []), '"a.key" has the unknown value type 13'],
  ['value type 2^32 - 1', ggufHead([rawEntry('a.key', 2 ** 32 - 1, u32(1))], []), '"a.key"'],
  ['a string of 2^63 bytes', ggufHead([rawEntry('a.key', string, u64(2n ** 63n))], []), '"a.key"'],
  ['a string of 2^64 - 1 bytes', ggufHead([rawEntry('a.key', string, u64(2n ** 64n - 1n))], []), '"a.key"'],
  ['a string longer than the file', ggufHead([rawEntry('a.key', string, u64(5000))], []), '"a.key"'],
  [
    'a string that is not UTF-8',
    ggufHead([rawEntry('a.key', string, text(Buffer.from([0xc3])))], []),
    '"a.key" is not valid UTF-8',
  ],
  ['a truth value of 2', ggufHead([rawEntry('a.key', bool, Buffer.from([2]))], []), '"a.key"'],
  [
    'an array of 2^63 entries',
    ggufHead([rawEntry('a.key', array, Buffer.concat([u32(string), u64(2n ** 63n)]))], []),
    '"a.key"',
  ],
  [
    'an array of 2^61 entries of 8 bytes',
    ggufHead([rawEntry('a.key', array, Buffer.concat([u32(10), u64(2n ** 61n)]))], []),
    '"a.key"',
  ],
  [
    'an array longer than the file',
    ggufHead([rawEntry('a.key', array, Buffer.concat([u32(uint32), u64(1000)]))], []),
    '"a.key" says 1000 entries',
  ],
  [
    'an array of an unknown type',
    ggufHead([rawEntry('a.key', array, Buffer.concat([u32(77), u64(1)]))], []),
    '"a.key" has the unknown value type 77',
  ],
  [
    'an array of arrays',
    ggufHead([rawEntry('a.key', array, Buffer.concat([u32(array), u64(0)]))], []),
    '"a.key" is an array of arrays',
  ],
  ['alignment 0', ggufHead([entry('general.alignment', 'uint32', 0)], []), 'general.alignment'],
  ['alignment 3', ggufHead([entry('general.alignment', 'uint32', 3)], []), 'general.alignment'],
  ['alignment 48', ggufHead([entry('general.alignment', 'uint32', 48)], []), 'general.alignment'],
  ['alignment 2^31', ggufHead([entry('general.alignment', 'uint32', 2 ** 31)], []), 'general.alignment'],
  ['a negative alignment', ggufHead([entry('general.alignment', 'int32', -32)], []), 'general.alignment'],
  ['an alignment that is no number', ggufHead([entry('general.alignment', 'string', '32')], []), 'general.alignment'],
  ['2^31 dimensions', withInfo({ count: 2 ** 31 }), '"blk.0.w" has 2147483648 dimensions'],
  ['no dimensions', withInfo({ count: 0, dimensions: [] }), '"blk.0.w" has 0 dimensions'],
  ['five dimensions', withInfo({ dimensions: [1, 1, 1, 1, 4] }), '"blk.0.w" has 5 dimensions'],
  ['a dimension of 0', withInfo({ dimensions: [4, 0] }), '"blk.0.w" has the impossible size 0'],
  ['a dimension of 2^63', withInfo({ dimensions: [2n ** 63n] }), '"blk.0.w" has the impossible size'],
  [
    'dimensions whose product is 2^64',
    withInfo({ dimensions: [2n ** 32n, 2n ** 32n] }),
    '"blk.0.w" has the impossible size',
  ],
  [
    'dimensions whose product wraps to 4',
    withInfo({ dimensions: [2n ** 62n + 1n, 4] }),
    '"blk.0.w" has the impossible size',
  ],
  ['a type out of range', withInfo({ type: 2 ** 31 }), '"blk.0.w" has type number 2147483648'],
  ['a removed type', withInfo({ type: 4 }), '"blk.0.w" has type number 4'],
  [
    'rows that are no whole blocks of a type of others',
    withInfo({ type: 13, dimensions: [250] }),
    '"blk.0.w" has rows of 250 elements',
  ],
  [
    'a tensor of another type outside of the file',
    withInfo({ type: 13, dimensions: [256] }),
    '"blk.0.w" lies outside the file',
  ],
  ['rows that are no whole blocks', withInfo({ type: STORAGE_TYPES.Q8_0.id }), '"blk.0.w" has rows of 4 elements'],
  ['an offset of 2^63', withInfo({ offset: 2n ** 63n }), '"blk.0.w" lies outside'],
  ['an offset of 2^64 - 32', withInfo({ offset: 2n ** 64n - 32n }), '"blk.0.w" lies outside'],
  ['an offset beyond the file', withInfo({ offset: 128 }), '"blk.0.w" lies outside'],
  ['an offset that is not aligned', withInfo({ offset: 16 }), '"blk.0.w" begins at 16'],
  ['more elements than the file has bytes', withInfo({ dimensions: [2n ** 40n] }), '"blk.0.w" lies outside'],
  ['one element too many', withInfo({ dimensions: [33] }), '"blk.0.w" lies outside'],
  ['a tensor listed twice', ggufFile([KEY], [vector('w'), vector('w')]), 'tensor "w" is listed twice'],
  [
    'tensors that overlap',
    Buffer.concat([
      ggufHead(
        [KEY],
        [
          tensorInfo('first', { dimensions: [16], type: STORAGE_TYPES.F32.id, offset: 0 }),
          tensorInfo('second', { dimensions: [4], type: STORAGE_TYPES.F32.id, offset: 32 }),
        ],
      ),
      DATA,
    ]),
    'tensor "second" overlaps',
  ],
  ['a tensor name that is very long', ggufFile([KEY], [vector('x'.repeat(2000))]), 'the name of tensor 0'],
];

describe('a hostile GGUF file', () => {
  it.each(hostile)('is refused: %s', (_, bytes, named) => {
    const message = refusal(bytes);
    expect(message).toContain(named);
    expect(message).toContain('model.gguf: ');
    expect(message.length).toBeLessThan(400);
  });

  it('is refused: truncated anywhere', () => {
    const bytes = ggufFile([KEY, arrayEntry('tokens', 'string', ['a', 'bc', 'd'])], [vector('one'), vector('two')]);
    const path = write(bytes);
    const { tensors } = readGgufHeader(path, 'model.gguf');
    const end = tensors.get('two')!.offset + 16;
    for (let size = end - 1; size >= 0; size--) {
      truncateSync(path, size);
      expect(() => readGgufHeader(path, 'model.gguf'), String(size)).toThrow(ModelError);
    }
  });

  it('says before it allocates: a sparse file of 2^40 bytes with counts that it could hold', () => {
    const size = 2 ** 40;
    for (const rest of [
      rawEntry('a.key', array, Buffer.concat([u32(uint32), u64(2n ** 36n)])),
      rawEntry('a.key', string, u64(2n ** 36n)),
    ]) {
      const path = write(Buffer.concat([counts(0n, 1n, rest), DATA]));
      truncateSync(path, size);
      expect(() => readGgufHeader(path, 'model.gguf')).toThrow(/"a\.key" is .*at most/);
    }
  });

  it('is bounded as a whole: strings that are each allowed', () => {
    const path = write(counts(0n, 5n, Buffer.alloc(0)));
    const length = 60 * 1024 * 1024;
    const file = openSync(path, 'r+');
    let at = 24;
    for (const key of ['a', 'b', 'c', 'd', 'e']) {
      const head = rawEntry(key, string, u64(length));
      writeSync(file, head, 0, head.length, at);
      at += head.length + length;
    }
    closeSync(file);
    truncateSync(path, at + 64);
    expect(() => readGgufHeader(path, 'model.gguf')).toThrow(/"e" lies beyond the \d+ bytes of metadata/);
  });
});
