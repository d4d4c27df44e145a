#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/logit_controls.h"
#include "ops/sampling.h"

namespace tandem::ops {
namespace {

// How many of the ids, heaviest first, survive min_p, top_k and top_p.
size_t kept_count(const std::vector<double>& weights, const std::vector<float>& sorted_logits, const SamplingParams& p) {
  size_t kept = weights.size();
  while (kept > 1 && weights[kept - 1] < p.min_p) --kept;
  if (p.top_k > 0 && size_t(p.top_k) < kept) {
    size_t k = size_t(p.top_k);
    while (k < kept && sorted_logits[k] == sorted_logits[k - 1]) ++k;
    kept = k;
  }
  double total = std::accumulate(weights.begin(), weights.begin() + int64_t(kept), 0.0), heavier = 0;
  for (size_t i = 0; i < kept; ++i) {
    if (i > 0 && heavier >= p.top_p * total) return i;
    heavier += weights[i];
  }
  return kept;
}

void forbid_others(std::vector<float>& logits, int64_t n, const std::vector<int32_t>& allowed) {
  for (int64_t i = 0; !allowed.empty() && i < n; ++i) {
    if (!std::binary_search(allowed.begin(), allowed.end(), int32_t(i))) logits[size_t(i)] = -INFINITY;
  }
}

}  // namespace

std::vector<double> distribution_reference(const SampleInput& input) {
  std::vector<float> logits(input.logits, input.logits + input.vocab);
  SamplingParams others = *input.params;
  StepControls step = input.step ? *input.step : StepControls{};
  forbid_others(logits, input.samplable, others.allowed);
  forbid_others(logits, input.samplable, step.allowed);
  for (std::vector<int32_t>* allowed : {&others.allowed, &step.allowed}) allowed->clear();
  others.allowed_bits.clear();
  SampleInput copy = input;
  copy.logits = logits.data();
  copy.params = &others;
  copy.step = &step;
  for (int64_t i = 0; input.mask && i < input.samplable; ++i) {
    if ((input.mask[i / 32] >> (i % 32) & 1) == 0) logits[size_t(i)] = -INFINITY;
  }
  SamplingScratch scratch;
  apply_controls(simd::kernels_for(simd::Isa::kScalar), copy, scratch);
  const SamplingParams& p = *input.params;
  std::vector<double> out(size_t(input.vocab), 0.0);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < input.samplable; ++i) {
    if (std::isfinite(logits[size_t(i)])) order.push_back(i);
  }
  if (order.empty()) return out;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
  if (p.temperature <= 0) {
    out[size_t(order[0])] = 1;
    return out;
  }
  std::vector<double> weights;
  std::vector<float> sorted;
  for (int64_t i : order) {
    sorted.push_back(logits[size_t(i)]);
    weights.push_back(std::exp((double(logits[size_t(i)]) - double(logits[size_t(order[0])])) / p.temperature));
  }
  size_t kept = kept_count(weights, sorted, p);
  double total = std::accumulate(weights.begin(), weights.begin() + int64_t(kept), 0.0);
  for (size_t i = 0; i < kept; ++i) out[size_t(order[i])] = weights[i] / total;
  return out;
}

}  // namespace tandem::ops
