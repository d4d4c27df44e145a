/** How weights are stored makes no difference: dtypes that hold the same values, and shards, give the same bits. */
import { afterAll, describe, expect, test } from 'vitest';
import { join } from 'node:path';
import type { ComputeDType } from '../../src/control/engine/native.ts';
import { Driver, generate, openModel } from '../fixtures/engine-driver.ts';
import { fromBFloat16, fromFloat16, toBFloat16, toFloat16 } from '../fixtures/float-formats.ts';
import { familyGoldens } from './logit-error.ts';
import { temporaryDirectory, writeFamily, type ModelFiles } from '../fixtures/tiny-model.ts';

const FAMILY = 'llama-bias';
const temporary = temporaryDirectory();
afterAll(() => temporary.remove());
let count = 0;

async function bits(files: ModelFiles, dtype: ComputeDType): Promise<string> {
  const directory = join(temporary.path, String(count++));
  writeFamily(directory, FAMILY, files);
  const opened = await openModel(directory, dtype);
  const driver = new Driver(opened);
  const ids = familyGoldens[FAMILY]!.tokens.slice(0, 50);
  const [result] = await generate(driver, [{ slot: 0, ids, sampling: { maxTokens: 10, logprobs: 5 } }]);
  driver.engine.close();
  opened.model.close();
  return JSON.stringify([result!.tokens, result!.logprobs, result!.tops.map(({ topLogprobs }) => [...topLogprobs])]);
}

const viaFloat16 = (_: string, values: Float32Array) => values.set(fromFloat16(toFloat16(values)));
const viaBFloat16 = (_: string, values: Float32Array) => values.set(fromBFloat16(toBFloat16(values)));

describe.each(['float32', 'bfloat16'] as const)('%s', (dtype) => {
  test('F16 is what it rounds to', async () => {
    expect(await bits({ dtype: 'F16' }, dtype)).toBe(await bits({ edit: viaFloat16 }, dtype));
  });

  test('BF16 is what it rounds to', async () => {
    expect(await bits({ dtype: 'BF16' }, dtype)).toBe(await bits({ edit: viaBFloat16 }, dtype));
  });

  test('shards', async () => {
    for (const stored of ['F32', 'BF16'] as const) {
      expect(await bits({ dtype: stored, shards: 3 }, dtype)).toBe(await bits({ dtype: stored }, dtype));
    }
  });
});

test('the formats do differ', async () => {
  const texts = [];
  for (const dtype of ['F32', 'F16', 'BF16'] as const) texts.push(await bits({ dtype }, 'float32'));
  expect(new Set(texts).size).toBe(3);
});
