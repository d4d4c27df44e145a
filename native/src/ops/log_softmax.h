// Log-probabilities of one row of logits: tiles in ascending order, the same arithmetic for sampling and for training.
#pragma once
#include <cstdint>
#include <vector>

#include "ops/element.h"
#include "simd/kernels.h"

namespace tandem::ops {

// The largest of the tile maxima; NaN if there is one.
float largest_tile(const std::vector<float>& maxima);
// Ascending, in double.
double tile_total(const std::vector<float>& sums);
// log of the sum of exp(logit * scale), from the largest logit and tile_total of the tiles of exp((logit - max) * scale).
float log_total(float max, float scale, double total);

// Working memory of one thread.
struct SoftmaxScratch {
  std::vector<float> maxima, sums, weighted;
};

struct TokenScore {
  float logprob;  // of the target: the bits of ops::score; NaN where the row holds NaN or +inf
  float entropy;  // of the whole row, nats
  float others;   // 1 - probability of the target
  float scale;    // 1 / sum of the terms
};

// Scores `target` in a row of n logits and turns the row into the terms exp(logit - max) as elements of that type, with 0 for the target.
// `terms` may be `logits` itself for floats. A row that is not finite leaves terms of 0.
TokenScore score_target(const simd::Kernels& kernels, Element element, const float* logits, int64_t n, int32_t target, void* terms,
                        SoftmaxScratch& scratch);

// The naive truth in double; `probabilities` gets n of them.
TokenScore score_target_reference(const float* logits, int64_t n, int32_t target, std::vector<double>& probabilities);

}  // namespace tandem::ops
