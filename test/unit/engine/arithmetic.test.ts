import { expect, test } from 'vitest';
import { arithmeticName, gpuKernelsName } from '../../../src/control/engine/arithmetic.ts';

test('what results depend on has a name of its own', () => {
  expect(arithmeticName({ dtype: 'bfloat16' })).toBe('bfloat16');
  expect(arithmeticName({ dtype: 'float32', quantize: 'int4' })).toBe('float32, int4 weights');
  expect(arithmeticName({ dtype: 'bfloat16', kvCacheDtype: 'int8' })).toBe('bfloat16, int8 KV cache');
  expect(arithmeticName({ dtype: 'bfloat16', quantize: 'int8', kvCacheDtype: 'int8' })).toBe(
    'bfloat16, int8 weights, int8 KV cache',
  );
});

test('kernels of a GPU that round differently have different names', () => {
  expect(gpuKernelsName({})).toBe('cuda');
  expect(gpuKernelsName({ TANDEM_CUDA_MATMUL: 'mma', TANDEM_CUDA_ATTENTION: '' })).toBe('cuda');
  expect(gpuKernelsName({ TANDEM_CUDA_ATTENTION: 'wgmma' })).toBe('cuda, wgmma attention');
  expect(gpuKernelsName({ TANDEM_CUDA_MATMUL: 'wgmma' })).toBe('cuda, wgmma products');
  expect(gpuKernelsName({ TANDEM_CUDA_ATTENTION: 'wgmma', TANDEM_CUDA_MATMUL: 'wgmma' })).toBe(
    'cuda, wgmma products, wgmma attention',
  );
});
