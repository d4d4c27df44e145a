// A product of one row that is normed first (norm/rms_norm.h), by one launch: y[1][n] = to_bf16(v * rsqrt(mean(v^2) + eps) * weight) . w[n][k]^T
// with v = x + the parts of the product before. It has the bits of both apart. One stream of a small model is a chain of short kernels, which
// is so two shorter in each layer; what each block reads besides, all of the row, is in the L2 cache.
#pragma once
#include "cuda/gemm/matmul.h"

namespace tandem::cuda {

struct NormedRow {
  const float* x;       // k
  Parts parts;          // of a product of the row, or none
  const float* weight;  // k
  float eps;
  float* sums;  // k: v, which other blocks than the one that writes it make for themselves; neither x nor the parts
};

// Whether a product of `args.m` rows, whose `x` is not read, can be made so.
bool matmul_normalises(const MatMul& args, const NormedRow& row);

// Throws Error(kRange) naming the argument.
void matmul_normed(const MatMul& args, const NormedRow& row, cudaStream_t stream);

}  // namespace tandem::cuda
