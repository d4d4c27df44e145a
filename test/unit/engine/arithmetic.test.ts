import { expect, test } from 'vitest';
import { arithmeticName } from '../../../src/control/engine/arithmetic.ts';

test('what results depend on has a name of its own', () => {
  expect(arithmeticName({ dtype: 'bfloat16' })).toBe('bfloat16');
  expect(arithmeticName({ dtype: 'float32', quantize: 'int4' })).toBe('float32, int4 weights');
  expect(arithmeticName({ dtype: 'bfloat16', kvCacheDtype: 'int8' })).toBe('bfloat16, int8 KV cache');
  expect(arithmeticName({ dtype: 'bfloat16', quantize: 'int8', kvCacheDtype: 'int8' })).toBe(
    'bfloat16, int8 weights, int8 KV cache',
  );
});
