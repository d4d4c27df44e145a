// Products of quantised weights and few tokens (matmul_few.cu), by the same chains as all others.
#pragma once
#include "cuda/gemm/matmul.h"
#include "cuda/gemm/split.h"

namespace tandem::cuda {

constexpr int kFewTokens = 64;

// Of at most so many; each part by blocks of its own where there are several.
void matmul_few(const MatMul& a, const Split& split, cudaStream_t stream);

}  // namespace tandem::cuda
