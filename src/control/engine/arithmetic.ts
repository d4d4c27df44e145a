import type { EngineConfig } from './protocol.ts';

type Arithmetic = Pick<EngineConfig, 'dtype' | 'quantize' | 'kvCacheDtype'>;

/** What results depend on besides the weights' files: 'bfloat16', or 'bfloat16, int4 weights, int8 KV cache'. */
export function arithmeticName({ dtype, quantize, kvCacheDtype }: Arithmetic): string {
  const parts: string[] = [dtype];
  if (quantize) parts.push(`${quantize} weights`);
  if (kvCacheDtype) parts.push(`${kvCacheDtype} KV cache`);
  return parts.join(', ');
}

/** What chooses kernels of a GPU that round differently; native/cuda has the tables of them. */
const GPU_KERNELS = { TANDEM_CUDA_MATMUL: 'products', TANDEM_CUDA_ATTENTION: 'attention' };
const DEFAULT_KERNEL = 'mma';

/** 'cuda', or with what is not the default, which is part of the fingerprint: 'cuda, wgmma products, wgmma attention'. */
export function gpuKernelsName(env: NodeJS.ProcessEnv): string {
  const parts = ['cuda'];
  for (const [variable, what] of Object.entries(GPU_KERNELS)) {
    const chosen = env[variable];
    if (chosen && chosen !== DEFAULT_KERNEL) parts.push(`${chosen} ${what}`);
  }
  return parts.join(', ');
}
