/** A trained model from elsewhere reproduces its greedy ids. Needs the shared data folder; skips where it is absent. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { fileURLToPath } from 'node:url';
import { Driver, generate, openModel } from '../fixtures/engine-driver.ts';

const DATA = process.env['TANDEM_SHARED_DATA'] ?? fileURLToPath(new URL('../../../shared/data', import.meta.url));
const STORIES = join(DATA, 'models', 'stories260K');
const FILE = join(DATA, 'models', 'stories260K-gguf', 'stories260K-f32.gguf');

test.skipIf(!existsSync(STORIES)).each([
  [1, STORIES],
  [2, STORIES],
  [16, STORIES],
  [16, FILE],
])('stories260K, prompt in chunks of %i: %s (needs ../shared/data)', async (chunk, path) => {
  const golden = JSON.parse(readFileSync(join(STORIES, 'greedy_golden.json'), 'utf8')) as {
    prompt_ids: number[];
    greedy_ids: number[];
  };
  const opened = await openModel(path, 'float32');
  const driver = new Driver(opened);
  const outputs = golden.greedy_ids.length - golden.prompt_ids.length;
  const [whole] = await generate(driver, [{ slot: 0, ids: golden.prompt_ids, sampling: { maxTokens: outputs } }]);
  expect([...golden.prompt_ids, ...whole!.tokens]).toEqual(golden.greedy_ids);

  const middle = 60;
  const half = golden.greedy_ids.slice(0, middle);
  const rest = { slot: 1, ids: half, sampling: { maxTokens: golden.greedy_ids.length - middle } };
  const [continued] = await generate(driver, [rest], chunk);
  expect([...half, ...continued!.tokens]).toEqual(golden.greedy_ids);
  driver.engine.close();
  opened.model.close();
});
