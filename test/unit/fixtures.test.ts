/** The fixtures themselves: hashed weights equal those the goldens were made from, and 16-bit formats round as they should. */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { fromBFloat16, fromFloat16, toBFloat16, toFloat16 } from '../fixtures/float-formats.ts';
import { checksum, hashTokens } from '../fixtures/hash-weights.ts';
import { familyPlan, hashedTensors } from '../fixtures/tiny-model.ts';

interface Golden {
  tokens: number[];
  F32: { tensors: Record<string, { shape: number[]; checksum: number }> };
  BF16: { tensors: Record<string, { shape: number[]; checksum: number }> };
}

const goldens = JSON.parse(readFileSync(new URL('../goldens/family-goldens.json', import.meta.url), 'utf8')) as Record<
  string,
  Golden
>;

describe.each(familyPlan.families)('$name', ({ name, config }) => {
  const golden = goldens[name]!;
  const tensors = hashedTensors(name, config);

  test('tensors have the names, shapes and values of transformers', () => {
    const found = tensors.map((tensor) => [tensor.name, { shape: tensor.shape, checksum: checksum(tensor.values) }]);
    expect(Object.fromEntries(found)).toEqual(golden.F32.tensors);
  });

  test('rounded tensors are those of the BF16 golden', () => {
    const sums = tensors.map(({ name: tensor, values }) => [tensor, checksum(fromBFloat16(toBFloat16(values)))]);
    const expected = Object.entries(golden.BF16.tensors).map(([tensor, entry]) => [tensor, entry.checksum]);
    expect(Object.fromEntries(sums)).toEqual(Object.fromEntries(expected));
  });

  test('tokens', () => {
    expect([...hashTokens(`${name}/tokens`, familyPlan.length, config.vocab_size)]).toEqual(golden.tokens);
  });
});

test('float16 keeps every finite value and rounds halves to even', () => {
  const all = Uint16Array.from({ length: 0x7c00 }, (_, bits) => bits);
  expect(toFloat16(fromFloat16(all))).toEqual(all);
  expect([
    ...fromFloat16(toFloat16(Float32Array.of(1 + 2 ** -11, 1 + 3 * 2 ** -11, 2 ** -25, 3 * 2 ** -25, 65520, -0.1))),
  ]).toEqual([1, 1 + 2 ** -9, 0, 2 ** -23, Infinity, -0.0999755859375]);
});

test('bfloat16 rounds halves to even', () => {
  expect([...fromBFloat16(toBFloat16(Float32Array.of(1 + 2 ** -8, 1 + 3 * 2 ** -8, -3.4e38)))]).toEqual([
    1,
    1 + 2 ** -6,
    -Infinity,
  ]);
});
