import type { EngineConfig } from './protocol.ts';

type Arithmetic = Pick<EngineConfig, 'dtype' | 'quantize' | 'kvCacheDtype'>;

/** What results depend on besides the weights' files: 'bfloat16', or 'bfloat16, int4 weights, int8 KV cache'. */
export function arithmeticName({ dtype, quantize, kvCacheDtype }: Arithmetic): string {
  const parts: string[] = [dtype];
  if (quantize) parts.push(`${quantize} weights`);
  if (kvCacheDtype) parts.push(`${kvCacheDtype} KV cache`);
  return parts.join(', ');
}
