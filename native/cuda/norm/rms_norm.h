// y[t] = x[t] * rsqrt(mean(x[t]^2) + eps) * weight, rows of `width` (RMSNorm, Zhang and Sennrich 2019).
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

struct RmsNorm {
  const float* x;  // rows, ldx floats apart
  int64_t ldx;
  const float* weight;  // width
  bf16* y;              // rows, ldy elements apart
  int64_t ldy;
  int64_t rows, width;  // rows >= 0, 1 <= width <= ldx, ldy
  float eps;
};

// Throws Error(kRange) naming the argument.
void rms_norm(const RmsNorm& args, cudaStream_t stream);

}  // namespace tandem::cuda
