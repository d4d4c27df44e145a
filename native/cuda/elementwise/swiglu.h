// The activation between gate, up and down (SwiGLU, Shazeer 2020), for every kernel that computes it.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

__device__ __forceinline__ float swiglu(float gate, float up) { return gate / (1.0f + expf(-gate)) * up; }

}  // namespace tandem::cuda
