// The activation between gate, up and down (SwiGLU, Shazeer 2020), for every kernel that computes it.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

__device__ __forceinline__ float swiglu(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

// The activation and its gradient, given d, that of the activation.
struct SwigluBack {
  float y, d_gate, d_up;
};
__device__ __forceinline__ SwigluBack swiglu_back(float gate, float up, float d) {
  const float sigmoid = 1.0f / (1.0f + expf(-gate)), silu = gate * sigmoid;
  // silu' = sigmoid + silu * (1 - sigmoid)
  return {silu * up, d * up * fmaf(silu, 1.0f - sigmoid, sigmoid), d * silu};
}

}  // namespace tandem::cuda
