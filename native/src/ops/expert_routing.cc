#include "ops/expert_routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace tandem::ops {
namespace {

// The largest logit that is not among the `count` chosen ones (ascending); the first of those that are no numbers if there is nothing else.
int32_t next_largest(const Routing& routing, const float* logits, const int32_t* chosen, int64_t count) {
  int32_t best = -1, spare = -1;
  const int32_t *taken = chosen, *end = chosen + count;
  for (int32_t e = 0; e < routing.experts; ++e) {
    if (taken != end && *taken == e) {
      ++taken;
      continue;
    }
    if (spare < 0) spare = e;
    if (logits[e] > (best < 0 ? -std::numeric_limits<float>::infinity() : logits[best])) best = e;
  }
  return best < 0 ? spare : best;
}

// The largest logit, or not a number where one is none.
float largest(const Routing& routing, const float* logits) {
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t e = 0; e < routing.experts && !std::isnan(max); ++e) {
    if (!(logits[e] <= max)) max = logits[e];
  }
  return max;
}

}  // namespace

void route(const Routing& routing, const float* logits, int32_t* chosen, float* weights) {
  for (int64_t count = 0; count < routing.used; ++count) {
    const int32_t next = next_largest(routing, logits, chosen, count);
    int32_t* place = std::lower_bound(chosen, chosen + count, next);
    std::copy_backward(place, chosen + count, chosen + count + 1);
    *place = next;
  }
  const float max = largest(routing, logits);
  float sum = 0;
  for (int64_t i = 0; i < routing.used; ++i) {
    weights[i] = std::exp(logits[chosen[i]] - max);
    sum += weights[i];
  }
  if (!routing.normalise) {
    sum = 0;
    for (int64_t e = 0; e < routing.experts; ++e) sum += std::exp(logits[e] - max);
  }
  for (int64_t i = 0; i < routing.used; ++i) weights[i] /= sum;
}

// Of a softmax: d logit = p (d p - sum of p d p). Normalised, the chosen experts are all there is; else the others have a weight too, which
// nothing asks for.
void route_backward(const Routing& routing, const float* logits, const int32_t* chosen, const float* weights, const float* d_weights,
                    float* d_logits) {
  float mean = 0;
  for (int64_t i = 0; i < routing.used; ++i) mean += weights[i] * d_weights[i];
  std::fill_n(d_logits, routing.experts, 0.0f);
  if (!routing.normalise) {
    const float max = largest(routing, logits);
    float sum = 0;
    for (int64_t e = 0; e < routing.experts; ++e) sum += std::exp(logits[e] - max);
    for (int64_t e = 0; e < routing.experts; ++e) d_logits[e] = -(std::exp(logits[e] - max) / sum) * mean;
  }
  for (int64_t i = 0; i < routing.used; ++i) d_logits[chosen[i]] = weights[i] * (d_weights[i] - mean);
}

void route_reference(const Routing& routing, const float* logits, int32_t* chosen, float* weights) {
  std::vector<int32_t> order(size_t(routing.experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  std::sort(order.begin(), order.begin() + routing.used);
  double sum = 0;
  for (int64_t i = 0; i < (routing.normalise ? routing.used : routing.experts); ++i) sum += std::exp(double(logits[order[size_t(i)]]));
  for (int64_t i = 0; i < routing.used; ++i) {
    chosen[i] = order[size_t(i)];
    weights[i] = float(std::exp(double(logits[chosen[i]])) / sum);
  }
}

}  // namespace tandem::ops
