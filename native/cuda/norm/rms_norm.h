// y[t] = x[t] * rsqrt(mean(x[t]^2) + eps) * weight, rows of `width` (RMSNorm, Zhang and Sennrich 2019).
#pragma once
#include "cuda/gemm/parts.h"

namespace tandem::cuda {

struct RmsNorm {
  const float* x;  // rows, ldx floats apart
  int64_t ldx;
  const float* weight;  // width
  bf16* y;              // rows, ldy elements apart
  int64_t ldy;
  int64_t rows, width;  // rows >= 0, 1 <= width <= ldx, ldy
  float eps;
  // Where there are parts of a product, they are added to x first: `sums` is x.
  Parts parts = {};
  float* sums = nullptr;
};

// Throws Error(kRange) naming the argument.
void rms_norm(const RmsNorm& args, cudaStream_t stream);

}  // namespace tandem::cuda
