import { createHash } from 'node:crypto';

/** Names everything that decides a token: the build, the weights, the arithmetic and the kernels. */
export function systemFingerprint(parts: { version: string; digest: string; dtype: string; isa: string }): string {
  const text = [parts.version, parts.digest, parts.dtype, parts.isa].join('\n');
  return `fp_${createHash('sha256').update(text).digest('hex').slice(0, 16)}`;
}
