#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/sampling.h"

namespace tandem::ops {

std::vector<double> distribution_reference(const float* logits, int64_t vocab, int64_t samplable, const std::vector<int32_t>& banned,
                                           const SamplingParams& params) {
  std::vector<double> p(size_t(vocab), 0.0);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < samplable; ++i) {
    if (std::find(banned.begin(), banned.end(), int32_t(i)) == banned.end() && std::isfinite(logits[i])) order.push_back(i);
  }
  if (order.empty()) return p;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  if (params.temperature <= 0) {
    p[size_t(order[0])] = 1;
    return p;
  }
  std::vector<double> w;
  for (int64_t i : order) w.push_back(std::exp((double(logits[i]) - double(logits[order[0]])) / params.temperature));
  size_t kept = w.size();
  while (kept > 1 && w[kept - 1] < params.min_p) --kept;
  if (params.top_k > 0 && size_t(params.top_k) < kept) {
    size_t k = size_t(params.top_k);
    while (k < kept && logits[order[k]] == logits[order[k - 1]]) ++k;
    kept = k;
  }
  double total = std::accumulate(w.begin(), w.begin() + int64_t(kept), 0.0), heavier = 0;
  for (size_t i = 0; i < kept; ++i) {
    if (i > 0 && heavier >= params.top_p * total) {
      kept = i;
      break;
    }
    heavier += w[i];
  }
  total = std::accumulate(w.begin(), w.begin() + int64_t(kept), 0.0);
  for (size_t i = 0; i < kept; ++i) p[size_t(order[i])] = w[i] / total;
  return p;
}

}  // namespace tandem::ops
