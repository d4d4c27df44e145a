// The way back through low-rank adapters beside one product, all rows under the same factors: what training adds to the gradients of the
// product's inputs and of the factors.
#pragma once
#include "cuda/common/gpu.h"

namespace tandem::cuda {

// Projections that read the same inputs and whose outputs lie beside each other: d of the outputs goes to u = scale * d B, u to dx += u A.
// The order of the sums of u follows from `out` alone; dx gets one sum per projection, in their order.
struct LoraBack {
  struct Projection {
    const bf16* a;  // [rank][in]
    const bf16* b;  // [rank][out]
    int64_t rank;
    float scale;
    int64_t first, out;  // columns of d
    float* u;            // [rows][rank]
  };
  static constexpr int kMost = 3;

  Projection projections[kMost];
  int64_t count;
  int64_t rows, in;
  const bf16* d;  // rows, ldd elements apart
  int64_t ldd;
  float* dx;  // rows of `in`, lddx floats apart
  int64_t lddx;
  // Not null, then rows of `in` elements, `in` apart, that get the sums rounded, and dx is left as it is.
  bf16* rounded = nullptr;
};
// Both throw Error(kRange) naming the argument. u of all projections; and dx, given u.
void lora_back_shrink(const LoraBack& args, cudaStream_t stream);
void lora_back_expand(const LoraBack& args, cudaStream_t stream);

// gradient[r][j] += sum over rows t of u[t][r] * x[t][j]: the gradient of a factor. The order of the sum follows from the number of rows.
// u is taken as the sum of two bf16, 16 bits of it. Those of the same rows x, wherever they stand, share what is read of them.
struct LoraOuter {
  static constexpr int kMost = 6;  // by one launch

  const float* u;  // rows, ldu floats apart
  int64_t ldu;
  const bf16* x;  // rows, ldx elements apart
  int64_t ldx;
  int64_t rows, ranks, columns;
  float* gradient;  // [ranks][columns]
};
// Throws Error(kRange) naming the argument.
void lora_outer(const LoraOuter* all, int64_t count, cudaStream_t stream);

}  // namespace tandem::cuda
