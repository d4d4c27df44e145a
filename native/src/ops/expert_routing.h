// A mixture of experts: which of them a token goes to, and in what proportions.
#pragma once
#include <cstdint>

namespace tandem::ops {

struct Routing {
  int64_t experts, used;  // 1 <= used <= experts
  bool normalise;         // the weights of those that are used sum to 1
};

// The `used` largest of the router's logits, of equal ones the first; ascending by index. Their weights: softmax over all experts or, with
// `normalise`, over the chosen ones, which is the same divided by its sum (softmax, top-k, renormalisation of Qwen3-MoE and Mixtral).
// Where a logit is not a number the choice is still `used` different experts, and no weight is a number.
void route(const Routing& routing, const float* logits, int32_t* chosen, float* weights);

// The gradient of all `experts` logits, given that of the weights.
void route_backward(const Routing& routing, const float* logits, const int32_t* chosen, const float* weights, const float* d_weights,
                    float* d_logits);

// The naive truth of finite logits: sorted, softmax in double.
void route_reference(const Routing& routing, const float* logits, int32_t* chosen, float* weights);

}  // namespace tandem::ops
