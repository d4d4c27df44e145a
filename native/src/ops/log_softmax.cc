#include "ops/log_softmax.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "simd/backward_kernels.h"

namespace tandem::ops {

float largest_tile(const std::vector<float>& maxima) {
  float best = -INFINITY;
  for (float t : maxima) {
    if (std::isnan(t)) return t;
    best = std::max(best, t);
  }
  return best;
}

double tile_total(const std::vector<float>& sums) {
  double sum = 0;
  for (float s : sums) sum += double(s);
  return sum;
}

float log_total(float max, float scale, double total) { return max * scale + float(std::log(total)); }

TokenScore score_target(const simd::Kernels& kernels, Element element, const float* logits, int64_t n, int32_t target, void* terms,
                        SoftmaxScratch& scratch) {
  const simd::BackwardKernels& backward = simd::backward_kernels_for(kernels.isa);
  size_t tiles = size_t(simd::row_tiles(n));
  for (auto* values : {&scratch.maxima, &scratch.sums, &scratch.weighted}) values->resize(tiles);
  kernels.tile_max(logits, n, scratch.maxima.data());
  float max = largest_tile(scratch.maxima), logit = logits[target];
  if (!std::isfinite(max)) {
    std::memset(terms, 0, size_t(n) * element_size(element));
    return {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN(), 0, 0};
  }
  if (element == Element::kBf16) {
    backward.tile_softmax_bf16(logits, n, max, static_cast<uint16_t*>(terms), scratch.sums.data(), scratch.weighted.data());
    static_cast<uint16_t*>(terms)[target] = 0;
  } else {
    backward.tile_softmax_f32(logits, n, max, static_cast<float*>(terms), scratch.sums.data(), scratch.weighted.data());
    static_cast<float*>(terms)[target] = 0;
  }
  double total = tile_total(scratch.sums), term = std::exp(double(logit - max));
  TokenScore score;
  score.logprob = logit - log_total(max, 1.0f, total);
  score.entropy = float(std::log(total) - tile_total(scratch.weighted) / total);
  // Not 1 - p: where the target is nearly certain, what is left of the sum is small and exact.
  score.others = float(std::max(0.0, (total - term) / total));
  score.scale = float(1.0 / total);
  return score;
}

TokenScore score_target_reference(const float* logits, int64_t n, int32_t target, std::vector<double>& probabilities) {
  double max = *std::max_element(logits, logits + n), total = 0, entropy = 0;
  probabilities.resize(size_t(n));
  for (int64_t i = 0; i < n; ++i) total += probabilities[size_t(i)] = std::exp(double(logits[i]) - max);
  for (double& p : probabilities) {
    p /= total;
    if (p > 0) entropy -= p * std::log(p);
  }
  double p = probabilities[size_t(target)];
  return {float(std::log(p)), float(entropy), float(1 - p), float(1 / total)};
}

}  // namespace tandem::ops
