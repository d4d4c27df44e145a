/**
 * Weights quantised at load, and int8 keys and values: on the starter model and on stories260K about as good as BF16.
 * `TANDEM_QUALITY=FILE` measures on other conversations, drawn by models/starter/recipe/draw.py, and prints what it finds.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, test } from 'vitest';
import { Driver, openModel } from '../fixtures/engine-driver.ts';
import type { LoadOptions } from '../../src/control/engine/native.ts';
import { qualityOf, type Conversation, type Quality } from './quality.ts';
import { STARTER } from '../fixtures/starter.ts';

const CONVERSATIONS = fileURLToPath(new URL('../goldens/starter-conversations.json', import.meta.url));
const DATA = process.env['TANDEM_SHARED_DATA'] ?? fileURLToPath(new URL('../../../shared/data', import.meta.url));
const STORIES = join(DATA, 'models', 'stories260K');

describe('the starter model', () => {
  const asked = process.env['TANDEM_QUALITY'];
  const conversations = JSON.parse(readFileSync(asked ?? CONVERSATIONS, 'utf8')) as Conversation[];
  let plain: Quality;
  const report = (name: string, quality: Quality) => asked && console.log(name, JSON.stringify(quality));

  beforeAll(async () => {
    plain = await qualityOf(STARTER, conversations, 'bfloat16');
    report('bfloat16', plain);
  }, 3_600_000);

  test.each([
    ['int8', 1.01, 1, 0.54],
    ['int4', 1.05, 3, 0.29],
  ] as const)(
    '%s: perplexity and scores stay, the memory shrinks',
    async (quantize, perplexity, points, size) => {
      const quality = await qualityOf(STARTER, conversations, 'bfloat16', { quantize });
      report(quantize, quality);
      expect(quality.perplexity / plain.perplexity).toBeLessThanOrEqual(perplexity);
      expect(quality.score).toBeGreaterThanOrEqual(plain.score - points);
      expect(plain.score).toBeGreaterThan(80);
      expect(quality.weightBytes / plain.weightBytes).toBeLessThanOrEqual(size);
    },
    3_600_000,
  );

  test('int8 keys and values: perplexity and scores stay, pages take little more than half', async () => {
    const quality = await qualityOf(STARTER, conversations, 'bfloat16', { kvCacheDtype: 'int8' });
    report('int8 keys and values', quality);
    expect(quality.perplexity).not.toBe(plain.perplexity);
    expect(quality.perplexity / plain.perplexity).toBeLessThanOrEqual(1.01);
    expect(quality.score).toBeGreaterThanOrEqual(plain.score - 1);
    expect(quality.weightBytes).toBe(plain.weightBytes);
    // A head's numbers, and a float each.
    expect(quality.pageBytes / plain.pageBytes).toBeLessThanOrEqual(0.54);
  }, 3_600_000);
});

/** Perplexity of a text under a model, all of it scored at once. */
async function perplexity(
  ids: number[],
  formats: Pick<LoadOptions, 'quantize' | 'kvCacheDtype'> = {},
): Promise<number> {
  const opened = await openModel(STORIES, 'float32', formats);
  const driver = new Driver(opened, { maxLogprobs: 1 });
  driver.open(0, ids.length, { logprobs: 0 }, undefined, 0);
  await driver.step([{ slot: 0, tokens: ids }]);
  const scores = driver.last!.promptLogprobs;
  driver.engine.close();
  opened.model.close();
  return Math.exp(-scores.reduce((sum, score) => sum + score, 0) / scores.length);
}

test.skipIf(!existsSync(STORIES))('stories260K on its own story (needs ../shared/data)', async () => {
  const file = readFileSync(join(STORIES, 'greedy_golden.json'), 'utf8');
  const { greedy_ids: ids } = JSON.parse(file) as { greedy_ids: number[] };
  const plain = await perplexity(ids);
  expect((await perplexity(ids, { quantize: 'int8' })) / plain).toBeLessThanOrEqual(1.01);
  expect((await perplexity(ids, { kvCacheDtype: 'int8' })) / plain).toBeLessThanOrEqual(1.01);
  // 260 thousand weights have no room for 4 bits: this says only that nothing is broken.
  expect((await perplexity(ids, { quantize: 'int4' })) / plain).toBeLessThanOrEqual(1.5);
});
