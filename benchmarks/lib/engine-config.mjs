/** Bytes: small enough to have been used all over once before anything is measured. */
export const KV_CACHE_BYTES = 1 << 30;

/** What an engine in a benchmark's own process is started with; `sizes`: maxSequences, maxBatchTokens, maxModelLen. */
export function engineConfig(model, threads, sizes) {
  return {
    spec: model.spec,
    files: model.files,
    tensors: model.tensors,
    dtype: 'bfloat16',
    threads,
    ...sizes,
    samplableVocab: model.tokenizerSize,
    maxLogprobs: 0,
    kvCacheBytes: KV_CACHE_BYTES,
    enableChunkedPrefill: true,
    faults: [],
  };
}
