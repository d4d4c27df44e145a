/** What every engine of these benchmarks is started with; `sizes`: maxSequences, maxBatchTokens, maxModelLen. */
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
    kvCacheBytes: 1 << 30,
    enableChunkedPrefill: true,
    faults: [],
  };
}
