/** Keys and values moved out of one engine and into another: the sequence goes on as if it had never left. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { join } from 'node:path';
import { PAGE_SIZE } from '../../src/control/engine/native.ts';
import { Driver, generate, openModel, type OpenModel } from '../fixtures/engine-driver.ts';
import { hashTokens } from '../fixtures/hash-weights.ts';
import { temporaryDirectory, writeFamily } from '../fixtures/tiny-model.ts';

const temporary = temporaryDirectory();
afterAll(() => temporary.remove());
const PROMPT = hashTokens('moved', 50, 250);
const OUTPUTS = 20;
const sampling = { maxTokens: OUTPUTS, temperature: 1, seed: 3n, logprobs: 2 };

describe.each([
  ['float32', {}],
  ['bfloat16', {}],
  ['float32', { kvCacheDtype: 'int8' }],
  ['bfloat16', { kvCacheDtype: 'int8' }],
] as const)('%s %j', (dtype, formats) => {
  let opened: OpenModel;
  beforeAll(async () => {
    writeFamily(join(temporary.path, dtype), 'mistral');
    opened = await openModel(join(temporary.path, dtype), dtype, formats);
  });
  afterAll(() => opened.model.close());

  /** Runs the prompt and `outputs` tokens; the engine stays. */
  async function begin(outputs: number): Promise<{ driver: Driver; tokens: number[] }> {
    const driver = new Driver(opened, { pages: 16 });
    driver.open(3, PROMPT.length, sampling);
    const tokens: number[] = [];
    let [sample] = await driver.step([{ slot: 3, tokens: PROMPT }]);
    while (tokens.push(sample!.token) < outputs) [sample] = await driver.step([{ slot: 3, tokens: [-1] }]);
    return { driver, tokens };
  }

  test('a sequence goes on in another engine and in other pages', async () => {
    const [whole] = await generate(new Driver(opened), [{ slot: 0, ids: PROMPT, sampling }]);
    const { driver, tokens } = await begin(7);
    const pages = Int32Array.from(driver.pagesOf(3));
    const bytes = await driver.engine.readPages(pages);
    expect(bytes.length).toBe(pages.length * opened.model.pageBytes);
    driver.engine.close();

    const other = new Driver(opened, { pages: 40 });
    other.free.reverse();
    const taken = other.free.splice(-pages.length).reverse();
    expect(taken).not.toEqual([...pages]);
    expect(await other.engine.writePages(Int32Array.from(taken), bytes)).toBeUndefined();
    const known = [...PROMPT, ...tokens];
    // Whole pages only: the rest is computed again.
    const full = Math.floor((known.length - 1) / PAGE_SIZE);
    const prefix = { tokens: known.slice(0, full * PAGE_SIZE), pages: taken.slice(0, full) };
    const [rest] = await generate(other, [{ slot: 9, ids: PROMPT, sampling, resume: tokens, prefix }]);
    other.engine.close();
    expect([...tokens, ...rest!.tokens]).toEqual(whole!.tokens);
    expect(rest!.logprobs).toEqual(whole!.logprobs.slice(tokens.length));
  });

  test('what is written is what is read; what cannot be keys and values is refused whole', async () => {
    const { driver } = await begin(1);
    const pages = Int32Array.from(driver.pagesOf(3));
    const bytes = await driver.engine.readPages(pages);
    const backwards = pages.slice().reverse();
    const found = await driver.engine.readPages(backwards);
    const { pageBytes } = opened.model;
    expect(found.subarray(0, pageBytes)).toEqual(bytes.subarray(bytes.length - pageBytes));

    // Sign, exponent and mantissa all ones: not a number in either format, nor a scale.
    const broken = bytes.slice();
    broken.fill(0xff, broken.length - 4);
    await expect(driver.engine.writePages(pages, broken)).rejects.toThrow(RangeError);
    await expect(driver.engine.writePages(pages, bytes.subarray(1))).rejects.toThrow(RangeError);
    expect(await driver.engine.readPages(pages)).toEqual(bytes);
    driver.engine.close();
  });
});
