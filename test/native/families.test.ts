/**
 * Every family against transformers' logits, prefill and decode, F32 and BF16; and the proof that the comparison sees each
 * feature: the same weights with one feature taken away must fail it.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { join } from 'node:path';
import type { ComputeDType, ModelSpec, YarnScaling } from '../../src/control/engine/native.ts';
import { Driver, fullLogprobs, openModel, type OpenModel } from '../fixtures/engine-driver.ts';
import { familyPlan, temporaryDirectory, writeFamily } from '../fixtures/tiny-model.ts';
import { familyGoldens, goldenRows, logitError, TOLERANCE } from './logit-error.ts';

const { positions } = familyPlan;
const temporary = temporaryDirectory();
const directoryOf = (family: string, dtype: string) => join(temporary.path, `${family}-${dtype}`);

beforeAll(() => {
  for (const { name } of familyPlan.families) {
    for (const dtype of ['F32', 'BF16'] as const) writeFamily(directoryOf(name, dtype), name, { dtype });
  }
});
afterAll(() => temporary.remove());

/** All golden positions as prompts of their own, in one step. */
async function prefillRows(opened: OpenModel, tokens: number[]): Promise<Float32Array[]> {
  const vocab = opened.files.spec.vocabSize;
  const driver = new Driver(opened);
  positions.forEach((position, slot) => driver.open(slot, position + 1, { logprobs: vocab }));
  const samples = await driver.step(
    positions.map((position, slot) => ({ slot, tokens: tokens.slice(0, position + 1) })),
  );
  driver.engine.close();
  return samples.map((sample) => fullLogprobs(sample, vocab));
}

/** One sequence, a token a step; the first token is the prompt, all others are fed as outputs. */
async function decodeRows(opened: OpenModel, tokens: number[]): Promise<Float32Array[]> {
  const vocab = opened.files.spec.vocabSize;
  const driver = new Driver(opened);
  driver.open(0, 1, { logprobs: vocab });
  const rows: Float32Array[] = [];
  for (let position = 0; position <= positions.at(-1)!; position++) {
    const sample = positions.includes(position);
    const samples = await driver.step([{ slot: 0, tokens: [tokens[position]!], sample }]);
    if (sample) rows.push(fullLogprobs(samples[0]!, vocab));
  }
  driver.engine.close();
  return rows;
}

async function errorOf(
  read: typeof prefillRows,
  family: string,
  stored: 'F32' | 'BF16',
  dtype: ComputeDType,
  changes: Partial<ModelSpec> = {},
): Promise<number> {
  const opened = await openModel(directoryOf(family, stored), dtype, { changes });
  try {
    return logitError(await read(opened, familyGoldens[family]!.tokens), goldenRows(family, stored));
  } finally {
    opened.model.close();
  }
}

describe.each(familyPlan.families)('$name', ({ name }) => {
  test('golden logits spread', () => {
    expect(familyGoldens[name]!.F32.std).toBeGreaterThanOrEqual(2);
    expect(familyGoldens[name]!.BF16.std).toBeGreaterThanOrEqual(2);
  });

  test.each([
    ['F32 weights, float32', 'F32', 'float32', TOLERANCE.F32],
    ['BF16 weights, float32', 'BF16', 'float32', TOLERANCE.F32],
    ['BF16 weights, bfloat16', 'BF16', 'bfloat16', TOLERANCE.BF16],
  ] as const)('%s', async (_, stored, dtype, tolerance) => {
    expect(await errorOf(prefillRows, name, stored, dtype)).toBeLessThanOrEqual(tolerance);
    expect(await errorOf(decodeRows, name, stored, dtype)).toBeLessThanOrEqual(tolerance);
  });
});

/** Positions divided by a billion: every angle is 0 in effect, so the rotation is the identity. */
const NO_ROPE: Partial<ModelSpec> = { ropeScaling: { type: 'linear', factor: 1e9 } };
const NO_SCALING: Partial<ModelSpec> = { ropeScaling: { type: 'none' } };
const NO_WINDOW: Partial<ModelSpec> = { slidingWindow: 0 };
const YARN: YarnScaling = {
  type: 'yarn',
  factor: 4,
  betaFast: 32,
  betaSlow: 1,
  truncate: true,
  attentionFactor: 0.1 * Math.log(4) + 1,
  originalMaxPosition: 40,
};

const ABLATIONS: [string, string, Partial<ModelSpec>][] = [
  ...familyPlan.families.map(({ name }): [string, string, Partial<ModelSpec>] => [name, 'RoPE', NO_ROPE]),
  ['llama3', 'llama3 rope scaling', NO_SCALING],
  ['llama-linear', 'linear rope scaling', NO_SCALING],
  ['qwen3-yarn', 'yarn', NO_SCALING],
  ['qwen3-yarn', "yarn's attention factor", { ropeScaling: { ...YARN, attentionFactor: 1 } }],
  ['qwen3-yarn', "yarn's ramp", { ropeScaling: { ...YARN, betaFast: 1 } }],
  ['llama-yarn', 'yarn', NO_SCALING],
  ['mistral', 'window', NO_WINDOW],
  ['mistral', 'exact window', { slidingWindow: 25 }],
  ['qwen2-window', 'window', NO_WINDOW],
  ['qwen2-window', 'window on upper layers only', { windowLayers: Uint8Array.of(1, 1, 1) }],
  ['qwen2', 'q/k/v biases', { qkvBias: false }],
  ['qwen2-window', 'q/k/v biases', { qkvBias: false }],
  ['llama-bias', 'q/k/v biases', { qkvBias: false }],
  ['llama-bias', 'output bias', { outputBias: false }],
  ['llama-bias', 'MLP biases', { mlpBias: false }],
  ['qwen3', 'q/k norm', { qkNorm: false }],
];

describe('a model without', () => {
  test.each(ABLATIONS)('%s: %s fails the comparison', async (family, _, changes) => {
    for (const read of [prefillRows, decodeRows]) {
      expect(await errorOf(read, family, 'F32', 'float32', changes)).toBeGreaterThan(100 * TOLERANCE.F32);
      expect(await errorOf(read, family, 'BF16', 'bfloat16', changes)).toBeGreaterThan(2 * TOLERANCE.BF16);
    }
  });
});
