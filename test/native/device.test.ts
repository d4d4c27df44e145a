/** --device cuda on whatever machine this is: a clear refusal without a GPU, the CPU's greedy tokens with one. */
import { expect, test } from 'vitest';
import { loadNative } from '../../src/control/engine/native.ts';
import { loadModel } from '../../src/control/models/load.ts';
import { Driver, generate, openModel } from '../fixtures/engine-driver.ts';
import { STARTER } from '../fixtures/starter.ts';

const { cuda } = loadNative().info();

test('the addon loads without a driver, and says what it found', () => {
  expect(cuda.devices).toBeGreaterThanOrEqual(0);
  expect(cuda.message).not.toBe('');
  if (!cuda.built) expect(cuda.devices).toBe(0);
});

test('only devices that exist, with what they have kernels for', async () => {
  const { spec, files, tensors } = await loadModel(STARTER);
  const load = (options: object) => loadNative().loadModel(spec, files, tensors, { threads: 1, ...options } as never);
  expect(() => load({ dtype: 'bfloat16', device: 'tpu' })).toThrow('device must be cpu or cuda');
  expect(() => load({ dtype: 'float32', device: 'cuda' })).toThrow('dtype must be bfloat16');
  const cuda = { dtype: 'bfloat16', device: 'cuda' };
  expect(() => load({ ...cuda, kvCacheDtype: 'int8' })).toThrow('kvCacheDtype int8 on cuda');
  expect(() => load({ dtype: 'bfloat16', quantize: 'fp8' })).toThrow('quantize: fp8 needs device cuda');
  expect(() => load({ ...cuda, quantize: 'int4', cache: { path: '/x', key: 'x' } })).toThrow('cache');
});

test.runIf(cuda.devices === 0)('without a GPU a model is refused with the reason', async () => {
  const { spec, files, tensors } = await loadModel(STARTER);
  const load = loadNative().loadModel(spec, files, tensors, { dtype: 'bfloat16', device: 'cuda', threads: 1 });
  await expect(load).rejects.toThrow(cuda.built ? `no GPU can be used: ${cuda.message}` : 'this build has no CUDA');
});

test.runIf(cuda.devices > 0)('a GPU gives the greedy tokens of the CPU', async () => {
  const outputs = [];
  for (const device of ['cpu', 'cuda'] as const) {
    const opened = await openModel(STARTER, 'bfloat16', { device });
    const driver = new Driver(opened, { maxLogprobs: 1 });
    const ids = Array.from({ length: 20 }, (_, index) => 100 + index);
    outputs.push(await generate(driver, [{ slot: 0, ids, sampling: { maxTokens: 16, logprobs: 1 } }]));
    driver.engine.close();
    opened.model.close();
  }
  expect(outputs[1]?.[0]?.tokens).toEqual(outputs[0]?.[0]?.tokens);
});
