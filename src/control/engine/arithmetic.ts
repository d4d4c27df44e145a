import type { EngineConfig } from './protocol.ts';

/** What results depend on besides the weights' files: 'bfloat16', or 'bfloat16, int8 weights'. */
export function arithmeticName({ dtype, quantize }: Pick<EngineConfig, 'dtype' | 'quantize'>): string {
  return quantize ? `${dtype}, ${quantize} weights` : dtype;
}
