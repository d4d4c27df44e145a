// From one row of logits to one token, its log-probability and the best alternatives.
//
// Order of operations as vLLM's sampler: raw log-probabilities are taken first, from the untouched logits over the whole vocabulary;
// then ids that may not be sampled are dropped, greedy rows take the argmax, the others divide by temperature and filter by min_p,
// top_k, top_p in this order before the draw.
#pragma once
#include <cstdint>
#include <vector>

#include "simd/kernels.h"

namespace tandem::ops {

struct SamplingParams {
  double temperature = 1;  // 0 = greedy
  double top_p = 1;        // (0, 1]
  int64_t top_k = 0;       // 0 = off
  double min_p = 0;        // [0, 1]
  uint64_t seed = 0;
  int64_t choice = 0;
  int64_t logprobs = -1;  // -1 none, k >= 0: of the sampled token and the k best
};

struct TopEntry {
  int32_t id;
  float logprob;
};

struct Sample {
  int32_t token = -1;  // -1: the row held NaN or +inf, or nothing could be sampled
  float logprob = 0;
  int32_t rank = 0;  // 1 + number of larger logits
};

// The one uniform in [0, 1) of (seed, choice, index): a counter-based hash, no state. SplitMix64's finaliser (Steele et al. 2014)
// applied three times.
double uniform(uint64_t seed, uint64_t choice, uint64_t index);

// Working memory of one thread.
struct SamplingScratch {
  std::vector<float> weights;     // [vocab]
  std::vector<int32_t> histogram_count;
  std::vector<double> histogram_mass;
  std::vector<TopEntry> candidates;
};

// logits: `vocab` floats; ids >= samplable and ids in `banned` are never sampled. `index` is the output index of the token.
// Appends min(params.logprobs, vocab) entries to `top` in descending order, ties by smaller id.
// Ties at the k-th value of top_k are kept. Of equal probabilities top_p keeps the smaller ids first.
Sample sample(const simd::Kernels& kernels, const float* logits, int64_t vocab, int64_t samplable, const std::vector<int32_t>& banned,
              const SamplingParams& params, uint64_t index, SamplingScratch& scratch, std::vector<TopEntry>& top);

// The naive truth of the distribution that sample() draws from: `vocab` probabilities in double, by full sorts.
std::vector<double> distribution_reference(const float* logits, int64_t vocab, int64_t samplable, const std::vector<int32_t>& banned,
                                           const SamplingParams& params);

}  // namespace tandem::ops
