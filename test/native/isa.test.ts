/** TANDEM_ISA really chooses the kernels, every set gives the goldens, and a name that is not there is an error. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { loadNative, type NativeInfo } from '../../src/control/engine/native.ts';
import { describeModel, runChild } from '../fixtures/child.ts';
import { familyPlan, temporaryDirectory, writeFamily } from '../fixtures/tiny-model.ts';
import { familyGoldens, goldenRows, logitError, TOLERANCE } from './logit-error.ts';

const CHILD = fileURLToPath(new URL('isa-child.mjs', import.meta.url));
const temporary = temporaryDirectory();
const { isa: chosen, isas } = loadNative().info();

beforeAll(() => {
  for (const name of ['mistral', 'qwen3']) {
    for (const dtype of ['F32', 'BF16'] as const)
      writeFamily(join(temporary.path, `${name}-${dtype}`), name, { dtype });
  }
});
afterAll(() => temporary.remove());

async function run(isa: string, family: string, dtype: 'F32' | 'BF16') {
  const model = await describeModel(
    join(temporary.path, `${family}-${dtype}`),
    dtype === 'F32' ? 'float32' : 'bfloat16',
  );
  const { tokens } = familyGoldens[family]!;
  const prompts = familyPlan.positions.map((position) => tokens.slice(0, position + 1));
  return runChild(CHILD, { model, prompts }, { env: { TANDEM_ISA: isa } });
}

test('the list is best first and ends with scalar', () => {
  expect(isas.at(-1)).toBe('scalar');
  expect(new Set(isas).size).toBe(isas.length);
  if (!process.env['TANDEM_ISA']) expect(chosen).toBe(isas[0]);
});

const slow = "products of BF16 pairs come behind those of floats where they are slower, on Intel's CPUs";
test.skipIf(!isas.includes('avx512_bf16'))(slow, () => {
  const intel = readFileSync('/proc/cpuinfo', 'utf8').includes('GenuineIntel');
  expect(isas.indexOf('avx512_bf16') > isas.indexOf('avx512_vnni')).toBe(intel);
});

describe.each(isas)('%s', (isa) => {
  test.each([
    ['mistral', 'F32'],
    ['mistral', 'BF16'],
    ['qwen3', 'F32'],
    ['qwen3', 'BF16'],
  ] as const)('%s %s', async (family, dtype) => {
    const { code, stdout, stderr } = await run(isa, family, dtype);
    expect(stderr).toBe('');
    expect(code).toBe(0);
    const output = JSON.parse(stdout) as { info: NativeInfo; rows: number[][] };
    expect(output.info.isa).toBe(isa);
    const rows = output.rows.map((row) => Float32Array.from(row));
    expect(logitError(rows, goldenRows(family, dtype))).toBeLessThanOrEqual(TOLERANCE[dtype]);
  });
});

test('different sets are different code: some float32 bits differ', async () => {
  const outputs = [];
  for (const isa of [isas[0]!, 'scalar']) outputs.push((await run(isa, 'qwen3', 'F32')).stdout);
  const [best, scalar] = outputs.map((text) => JSON.stringify((JSON.parse(text) as { rows: number[][] }).rows));
  if (isas.length > 1) expect(best).not.toBe(scalar);
});

test.each(['avx1024', 'AVX2 ', 'x'.repeat(5000)])('%.10s is refused', async (isa) => {
  const { code, signal, stdout, stderr } = await run(isa, 'qwen3', 'F32');
  expect({ code, signal, stdout }).toEqual({ code: 1, signal: null, stdout: '' });
  expect(stderr).toContain('TANDEM_ISA');
  expect(stderr).toContain('scalar');
});
