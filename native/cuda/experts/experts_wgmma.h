// Products of pairs by Hopper's own instructions. What experts_matmul() and experts_matmul_transposed() check is checked.
#pragma once
#include "cuda/experts/experts.h"

namespace tandem::cuda {

void experts_wgmma(const ExpertsMatMul& e, cudaStream_t stream);
void experts_transposed_wgmma(const ExpertsMatMul& e, cudaStream_t stream);

}  // namespace tandem::cuda
