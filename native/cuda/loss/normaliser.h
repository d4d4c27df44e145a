// What turns logits into log-probabilities: one arithmetic for sampled tokens and for those that are trained on.
#pragma once
#include "cuda/common/reduce.h"

namespace tandem::cuda {

constexpr int kVocabThreads = 512;  // of a block that works on one row of logits

__device__ inline float block_largest(const float* values, int64_t count) {
  float largest = -INFINITY;
  GPU_UNROLL_8
  for (int64_t i = threadIdx.x; i < count; i += kVocabThreads) largest = fmaxf(largest, values[i]);
  return block_max(largest);
}

// The log-probability of a value v is (v - largest) * scale - log_sum.
struct Normaliser {
  float largest, scale, log_sum;
  __device__ float operator()(float v) const { return (v - largest) * scale - log_sum; }
};

// The whole block. False: there is a NaN or +infinity, or nothing but -infinity; the sum shows it.
__device__ inline bool normalise(const float* logits, int64_t vocab, float scale, Normaliser& n) {
  const float largest = block_largest(logits, vocab);
  float sum = 0;
  GPU_UNROLL_8
  for (int64_t i = threadIdx.x; i < vocab; i += kVocabThreads) sum += expf((logits[i] - largest) * scale);
  n = {largest, scale, logf(block_sum(sum))};
  return isfinite(n.log_sum);
}

}  // namespace tandem::cuda
